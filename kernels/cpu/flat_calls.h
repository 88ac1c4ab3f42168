// Calls of an optimiser step, recorded without a Python function in between.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace msprobe {

// See the documentation string in module.cpp. `values`: phase, function, args, kwargs, frame.
PyObject* run_flat_call(PyObject* const* values);

}  // namespace msprobe
