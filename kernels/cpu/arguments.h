// Reading of Python arguments. Every failure leaves a Python exception that names function, argument and value.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "stats.h"

namespace msprobe {

// Positional arguments of one METH_FASTCALL call.
class Arguments {
 public:
  Arguments(const char* function, PyObject* const* values, Py_ssize_t count)
      : function_(function), values_(values), count_(count) {}

  // Raises TypeError unless the number of arguments is within [least, most].
  bool count_within(Py_ssize_t least, Py_ssize_t most) const;
  Py_ssize_t count() const { return count_; }

  bool integer(int i, const char* name, int64_t* out) const;
  // A size or a number of threads: >= 0.
  bool natural(int i, const char* name, int64_t* out) const;
  // An address, which may be null only when `nbytes` is 0.
  bool address(int i, int64_t nbytes, const void** out) const;
  bool dtype(int i, Dtype* out, int64_t* code) const;
  // Sizes (all >= 0) or strides from a tuple of at most kMaxDims integers.
  bool sizes(int i, const char* name, int64_t* out, int* ndim) const;
  bool strides(int i, const char* name, int64_t* out, int* ndim) const;
  // The layout given by (ptr, sizes, strides) at arguments `i` to `i + 2`.
  bool layout(int i, int itemsize, Layout* out) const;
  bool itemsize(int i, int* out) const;

  const char* function() const { return function_; }

 private:
  bool tuple(int i, const char* name, int64_t* out, int* ndim) const;

  const char* function_;
  PyObject* const* values_;
  Py_ssize_t count_;
};

// Plain bytes as a layout.
Layout bytes_layout(const void* p, int64_t nbytes);

}  // namespace msprobe
