#include "tensor_object.h"

namespace msprobe {

namespace {

// DLPack 1.x: the parts of its C header that are read here (https://dmlc.github.io/dlpack/latest/c_api.html).
struct DLTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct ExchangeApi {
  uint32_t major, minor;
  void* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*view_of)(void* object, void* out);
  void* current_stream;
};

constexpr uint32_t kMajor = 1;
constexpr int32_t kHostMemory = 1;  // kDLCPU
// Addresses below are storage offsets of a freed or missing storage, not memory.
constexpr uintptr_t kLowestAddress = uintptr_t(1) << 32;

struct Names {
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* stride = PyUnicode_InternFromString("stride");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
};

const Names& names() { return interned<Names>(); }

}  // namespace

bool Elements::contiguous() const {
  int64_t expected = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    if (size[i] != 1 && stride[i] != expected) return false;
    expected *= size[i];
  }
  return true;
}

Layout Elements::layout(int itemsize) const {
  Layout found;
  found.base = data;
  found.itemsize = itemsize;
  for (int i = 0; i < ndim; ++i) found.push(size[i], stride[i]);
  return found;
}

TensorReader::TensorReader(PyObject* exchange) {
  constexpr const char* kName = "dlpack_exchange_api";
  if (!PyCapsule_IsValid(exchange, kName)) return;
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(exchange, kName));
  if (api->major == kMajor) view_of_ = api->view_of;
}

bool TensorReader::read(PyObject* tensor, Elements* elements) const {
  const bool found = view_of_ ? read_exchange(tensor, elements) : read_attributes(tensor, elements);
  if (!found || elements->numel == 0) return false;
  return reinterpret_cast<uintptr_t>(elements->data) >= kLowestAddress;
}

bool TensorReader::read_exchange(PyObject* tensor, Elements* elements) const {
  DLTensor view;
  if (view_of_(tensor, &view) != 0) return false;
  if (view.device_type != kHostMemory || view.ndim < 0 || view.ndim > kMaxDims || view.data == nullptr) return false;
  elements->data = static_cast<const char*>(view.data) + view.byte_offset;
  elements->ndim = view.ndim;
  for (int i = 0; i < view.ndim; ++i) {
    elements->size[i] = view.shape[i];
    elements->stride[i] = view.strides[i];
    elements->numel *= view.shape[i];
  }
  return true;
}

bool TensorReader::read_attributes(PyObject* tensor, Elements* elements) {
  const Ref on_host(PyObject_GetAttr(tensor, names().is_cpu));
  if (on_host.get() != Py_True) return false;
  const Ref shape(PyObject_GetAttr(tensor, names().shape));
  const Ref stride(shape ? PyObject_CallMethodObjArgs(tensor, names().stride, nullptr) : nullptr);
  const Ref address(stride ? PyObject_CallMethodObjArgs(tensor, names().data_ptr, nullptr) : nullptr);
  if (!address || !PyTuple_Check(shape.get()) || !PyTuple_Check(stride.get())) return false;
  const Py_ssize_t ndim = PyTuple_Size(shape.get());
  if (ndim > kMaxDims || PyTuple_Size(stride.get()) != ndim) return false;
  elements->data = static_cast<const char*>(PyLong_AsVoidPtr(address.get()));
  elements->ndim = static_cast<int>(ndim);
  for (int i = 0; i < elements->ndim; ++i) {
    elements->size[i] = PyLong_AsLongLong(PyTuple_GetItem(shape.get(), i));
    elements->stride[i] = PyLong_AsLongLong(PyTuple_GetItem(stride.get(), i));
    elements->numel *= elements->size[i];
  }
  return !PyErr_Occurred();
}

}  // namespace msprobe
