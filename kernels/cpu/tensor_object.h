// Where the elements of a Python tensor object lie. No torch headers: the object is asked through DLPack's C exchange
// functions where its class has them, through its attributes otherwise.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "strided.h"

namespace msprobe {

// Owns a reference.
class Ref {
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    PyObject* before = object_;
    object_ = other.release();
    Py_XDECREF(before);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

// The attribute names that a file asks for, interned when it first asks; they live as long as the interpreter.
template <class Names>
const Names& interned() {
  static const Names* const all = new Names;
  return *all;
}

// Elements of a strided tensor in host memory; strides are in elements.
struct Elements {
  const char* data = nullptr;
  int ndim = 0;
  int64_t numel = 1;
  int64_t size[kMaxDims];
  int64_t stride[kMaxDims];

  bool contiguous() const;
  Layout layout(int itemsize) const;
};

// Reads tensor objects of one framework.
class TensorReader {
 public:
  // `exchange`: the class's `__dlpack_c_exchange_api__` capsule, or anything else if it has none.
  explicit TensorReader(PyObject* exchange);

  // Where the elements of `tensor` lie. False: not in host memory, no plain strided layout, or nothing there; an
  // exception may be set, which says why.
  bool read(PyObject* tensor, Elements* elements) const;

 private:
  bool read_exchange(PyObject* tensor, Elements* elements) const;
  static bool read_attributes(PyObject* tensor, Elements* elements);

  int (*view_of_)(void*, void*) = nullptr;
};

}  // namespace msprobe
