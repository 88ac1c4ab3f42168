// Dump entries of plain values, written as JSON without an intermediate Python object.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>

#include "tensor_object.h"

namespace msprobe {

// Entries of several values: JSON text if all of them are plain, otherwise an object with an entry for each.
struct Encoded {
  std::string text;
  Ref other;

  bool empty() const { return text.empty() && !other; }

  // The entries as an object, a new reference; null with an exception.
  PyObject* object(PyObject* encoder) const;
};

// False: an exception is set.
bool encode_list(PyObject* values, PyObject* encoder, Encoded* found);
// Finds nothing if a key needs the encoder in Python.
bool encode_dict(PyObject* mapping, PyObject* encoder, Encoded* found);

// JSON text as a value that is written as it is.
PyObject* json_fragment(const std::string& text, PyObject* encoder);

// See the documentation strings in module.cpp.
PyObject* make_encoder(PyObject* spec);
PyObject* encode_value(PyObject* value, PyObject* encoder);
PyObject* encode_values(PyObject* values, PyObject* encoder);
PyObject* encode_pairs(PyObject* mapping, PyObject* encoder);

// Number of tensors measured by encoders in this process.
PyObject* encoded_count();

}  // namespace msprobe
