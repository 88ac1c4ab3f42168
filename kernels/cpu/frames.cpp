// Stacks of Python frames.
//
// Every recorded call asks where it comes from. Ten frames up are two hundred bytecode instructions in Python; here they
// are thirty attributes. A frame's attributes belong to the limited API, its fields do not.
#include "frames.h"

#include <cstdint>
#include <vector>

#include "tensor_object.h"

namespace msprobe {

namespace {

struct Names {
  PyObject* back = PyUnicode_InternFromString("f_back");
  PyObject* code = PyUnicode_InternFromString("f_code");
  PyObject* offset = PyUnicode_InternFromString("f_lasti");
};

const Names& names() { return interned<Names>(); }

// Appends code object and instruction offset of a frame. False: an exception is set.
bool append(PyObject* frame, std::vector<int64_t>* key) {
  const Ref code(PyObject_GetAttr(frame, names().code));
  const Ref offset(code ? PyObject_GetAttr(frame, names().offset) : nullptr);
  if (!offset) return false;
  key->push_back(reinterpret_cast<int64_t>(code.get()));
  key->push_back(PyLong_AsLongLong(offset.get()));
  return !PyErr_Occurred();
}

}  // namespace

int append_stack(PyObject* frame, PyObject* anchor, PyObject* outer, bool inclusive, std::vector<int64_t>* key) {
  key->push_back(reinterpret_cast<int64_t>(outer));
  Py_INCREF(frame);
  Ref walked(frame);
  while (walked.get() != Py_None && walked.get() != anchor) {
    if (!append(walked.get(), key)) return -1;
    walked = Ref(PyObject_GetAttr(walked.get(), names().back));
    if (!walked) return -1;
  }
  if (walked.get() != anchor) return 0;  // None is the anchor of a whole stack
  return inclusive && anchor != Py_None && !append(anchor, key) ? -1 : 1;
}

PyObject* as_key(const std::vector<int64_t>& key) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(key.data()),
                                   static_cast<Py_ssize_t>(key.size() * sizeof(int64_t)));
}

PyObject* stack_key(PyObject* frame, PyObject* anchor, PyObject* outer, bool inclusive) {
  std::vector<int64_t> key;
  key.reserve(64);
  switch (append_stack(frame, anchor, outer, inclusive, &key)) {
    case 1: return as_key(key);
    case 0: Py_RETURN_NONE;
    default: return nullptr;
  }
}

}  // namespace msprobe
