// Stacks of Python frames.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace msprobe {

// See the documentation string in module.cpp.
PyObject* stack_key(PyObject* frame, PyObject* anchor, PyObject* outer, bool inclusive);

}  // namespace msprobe
