#include "arguments.h"

namespace msprobe {

bool Arguments::count_within(Py_ssize_t least, Py_ssize_t most) const {
  if (count_ >= least && count_ <= most) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd positional arguments, got %zd", function_, least, most, count_);
  return false;
}

bool Arguments::integer(int i, const char* name, int64_t* out) const {
  *out = PyLong_AsLongLong(values_[i]);
  if (*out != -1 || !PyErr_Occurred()) return true;
  PyErr_Format(PyErr_ExceptionMatches(PyExc_OverflowError) ? PyExc_OverflowError : PyExc_TypeError,
               "%s(): %s must be a 64-bit integer, got %R", function_, name, values_[i]);
  return false;
}

bool Arguments::natural(int i, const char* name, int64_t* out) const {
  if (!integer(i, name, out)) return false;
  if (*out >= 0) return true;
  PyErr_Format(PyExc_ValueError, "%s(): %s must be >= 0, got %lld", function_, name, static_cast<long long>(*out));
  return false;
}

bool Arguments::address(int i, int64_t nbytes, const void** out) const {
  *out = PyLong_AsVoidPtr(values_[i]);
  if (*out == nullptr && PyErr_Occurred()) {
    PyErr_Format(PyExc_TypeError, "%s(): ptr must be an address as an integer, got %R", function_, values_[i]);
    return false;
  }
  if (*out != nullptr || nbytes == 0) return true;
  PyErr_Format(PyExc_ValueError, "%s(): ptr is null for %lld bytes; pass the address of host memory", function_,
               static_cast<long long>(nbytes));
  return false;
}

bool Arguments::dtype(int i, Dtype* out, int64_t* code) const {
  if (!integer(i, "dtype_code", code)) return false;
  *out = dtype_of(*code);
  if (out->kind != Kind::kUnknown) return true;
  PyErr_Format(PyExc_ValueError, "%s(): no kernel for dtype_code %lld; it is the number of a c10::ScalarType", function_,
               static_cast<long long>(*code));
  return false;
}

bool Arguments::tuple(int i, const char* name, int64_t* out, int* ndim) const {
  const Py_ssize_t length = PyTuple_Check(values_[i]) ? PyTuple_Size(values_[i]) : -1;
  if (length < 0 || length > kMaxDims) {
    PyErr_Format(PyExc_TypeError, "%s(): %s must be a tuple of at most %d integers, got %R", function_, name, kMaxDims,
                 values_[i]);
    return false;
  }
  for (Py_ssize_t d = 0; d < length; ++d) {
    out[d] = PyLong_AsLongLong(PyTuple_GetItem(values_[i], d));
    if (out[d] == -1 && PyErr_Occurred()) {
      PyErr_Format(PyExc_TypeError, "%s(): %s must hold 64-bit integers, got %R", function_, name, values_[i]);
      return false;
    }
  }
  *ndim = static_cast<int>(length);
  return true;
}

bool Arguments::strides(int i, const char* name, int64_t* out, int* ndim) const { return tuple(i, name, out, ndim); }

bool Arguments::sizes(int i, const char* name, int64_t* out, int* ndim) const {
  if (!tuple(i, name, out, ndim)) return false;
  for (int d = 0; d < *ndim; ++d) {
    if (out[d] >= 0) continue;
    PyErr_Format(PyExc_ValueError, "%s(): %s must not be negative, got %R", function_, name, values_[i]);
    return false;
  }
  return true;
}

bool Arguments::layout(int i, int itemsize, Layout* out) const {
  int64_t sizes_read[kMaxDims], strides_read[kMaxDims];
  int ndim = 0, stride_count = 0;
  if (!sizes(i + 1, "sizes", sizes_read, &ndim) || !strides(i + 2, "strides", strides_read, &stride_count)) return false;
  if (ndim != stride_count) {
    PyErr_Format(PyExc_ValueError, "%s(): %d sizes but %d strides; pass one stride (in elements) per dimension",
                 function_, ndim, stride_count);
    return false;
  }
  out->itemsize = itemsize;
  for (int d = 0; d < ndim; ++d) out->push(sizes_read[d], strides_read[d]);
  const void* p = nullptr;
  if (!address(i, out->numel * itemsize, &p)) return false;
  out->base = static_cast<const char*>(p);
  return true;
}

bool Arguments::itemsize(int i, int* out) const {
  int64_t value = 0;
  if (!integer(i, "itemsize", &value)) return false;
  *out = static_cast<int>(value);
  if (value == 1 || value == 2 || value == 4 || value == 8 || value == 16) return true;
  PyErr_Format(PyExc_ValueError, "%s(): itemsize must be 1, 2, 4, 8 or 16 bytes, got %lld", function_,
               static_cast<long long>(value));
  return false;
}

Layout bytes_layout(const void* p, int64_t nbytes) {
  Layout layout;
  layout.base = static_cast<const char*>(p);
  layout.itemsize = 1;
  layout.push(nbytes, 1);
  return layout;
}

}  // namespace msprobe
