// Dump entries of plain values, written as JSON without an intermediate Python object.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace msprobe {

// See the documentation strings in module.cpp.
PyObject* make_encoder(PyObject* spec);
PyObject* encode_value(PyObject* value, PyObject* encoder);
PyObject* encode_values(PyObject* values, PyObject* encoder);
PyObject* encode_pairs(PyObject* mapping, PyObject* encoder);

// Number of tensors measured by encoders in this process.
PyObject* encoded_count();

}  // namespace msprobe
