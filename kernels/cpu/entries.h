// Dump entries of plain tensors, written as JSON without an intermediate Python object.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace msprobe {

// encode_values(values, spec): see the documentation string in module.cpp.
PyObject* encode_values(PyObject* values, PyObject* spec);

// Number of tensors that encode_values has measured in this process.
PyObject* encoded_count();

}  // namespace msprobe
