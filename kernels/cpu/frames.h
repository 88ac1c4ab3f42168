// Stacks of Python frames.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

namespace msprobe {

// Appends what tells the stack from `frame` outwards to `anchor` from others. 1: done; 0: `anchor` is not on the stack;
// -1: an exception is set.
int append_stack(PyObject* frame, PyObject* anchor, PyObject* outer, bool inclusive, std::vector<int64_t>* key);

// Numbers as bytes, which a dict can look up.
PyObject* as_key(const std::vector<int64_t>& key);

// See the documentation string in module.cpp.
PyObject* stack_key(PyObject* frame, PyObject* anchor, PyObject* outer, bool inclusive);

}  // namespace msprobe
