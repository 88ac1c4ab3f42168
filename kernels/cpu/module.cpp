// Python module msprobe.kernels._native, on CPython's limited API (one binary for 3.10 and later).
#include "arguments.h"
#include "entries.h"
#include "flat_calls.h"
#include "frames.h"

#include <new>
#include <vector>

namespace msprobe {

namespace {

// Work on at least this many bytes is done without the interpreter lock.
constexpr int64_t kReleaseFrom = 1 << 16;

template <class Work>
auto run(int64_t nbytes, const Work& work) -> decltype(work()) {
  if (nbytes < kReleaseFrom) return work();
  PyThreadState* state = PyEval_SaveThread();
  const auto result = work();
  PyEval_RestoreThread(state);
  return result;
}

PyObject* extreme(Kind kind, double real, int64_t integer) {
  switch (kind) {
    case Kind::kFloat: return PyFloat_FromDouble(real);
    case Kind::kBool: return PyBool_FromLong(integer > 0);
    case Kind::kUInt64: return PyLong_FromUnsignedLongLong(static_cast<uint64_t>(integer) ^ (uint64_t(1) << 63));
    default: return PyLong_FromLongLong(integer);
  }
}

// (max, min, sum, sumsq, nan, inf, zero)
PyObject* reduction(const Partial& r, const Dtype& dtype) {
  const bool real = dtype.kind == Kind::kFloat;
  PyObject* items[7] = {
      extreme(dtype.kind, r.max, r.imax),
      extreme(dtype.kind, r.min, r.imin),
      PyFloat_FromDouble(real ? r.sum : static_cast<double>(r.isum)),
      PyFloat_FromDouble(real || dtype.itemsize == 8 ? r.sumsq : static_cast<double>(r.isumsq)),
      PyLong_FromLongLong(r.nan),
      PyLong_FromLongLong(r.inf),
      PyLong_FromLongLong(r.zero),
  };
  PyObject* tuple = PyTuple_New(7);
  bool complete = tuple != nullptr;
  for (int i = 0; i < 7; ++i) {
    if (items[i] == nullptr) complete = false;
    if (tuple == nullptr) {
      Py_XDECREF(items[i]);
    } else {
      PyTuple_SetItem(tuple, i, items[i]);
    }
  }
  if (complete) return tuple;
  Py_XDECREF(tuple);
  return nullptr;
}

bool not_empty(const char* function, int64_t numel) {
  if (numel > 0) return true;
  PyErr_Format(PyExc_ValueError, "%s(): a tensor without elements has no statistics", function);
  return false;
}

PyObject* py_stats(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("stats", values, count);
  int64_t numel = 0, code = 0, threads = 1;
  const void* p = nullptr;
  Dtype dtype;
  if (!args.count_within(4, 4) || !args.natural(1, "numel", &numel) || !not_empty("stats", numel) ||
      !args.dtype(2, &dtype, &code) || !args.natural(3, "threads", &threads) ||
      !args.address(0, numel * dtype.itemsize, &p))
    return nullptr;
  const Partial r = run(numel * dtype.itemsize, [&] { return stats(p, numel, dtype, threads); });
  return reduction(r, dtype);
}

PyObject* py_stats_strided(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("stats_strided", values, count);
  int64_t code = 0, threads = 1;
  Dtype dtype;
  Layout layout;
  if (!args.count_within(5, 5) || !args.dtype(3, &dtype, &code) || !args.natural(4, "threads", &threads) ||
      !args.layout(0, dtype.itemsize, &layout) || !not_empty("stats_strided", layout.numel))
    return nullptr;
  const Partial r = run(layout.numel * dtype.itemsize, [&] { return stats(layout, dtype, threads); });
  return reduction(r, dtype);
}

struct Job {
  const void* p = nullptr;
  int64_t numel = 0;
  Dtype dtype;
  Partial result;
};

bool read_job(PyObject* item, Job* job) {
  if (!PyTuple_Check(item) || PyTuple_Size(item) != 3) {
    PyErr_Format(PyExc_TypeError, "stats_batch(): each entry must be a tuple (ptr, numel, dtype_code), got %R", item);
    return false;
  }
  PyObject* values[3];
  for (int i = 0; i < 3; ++i) values[i] = PyTuple_GetItem(item, i);
  const Arguments args("stats_batch", values, 3);
  int64_t code = 0;
  return args.natural(1, "numel", &job->numel) && not_empty("stats_batch", job->numel) &&
         args.dtype(2, &job->dtype, &code) && args.address(0, job->numel * job->dtype.itemsize, &job->p);
}

PyObject* results_of(const std::vector<Job>& jobs) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(jobs.size()));
  for (size_t i = 0; list != nullptr && i < jobs.size(); ++i) {
    PyObject* entry = reduction(jobs[i].result, jobs[i].dtype);
    if (entry == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SetItem(list, static_cast<Py_ssize_t>(i), entry);
  }
  return list;
}

PyObject* batch(PyObject* entries, int64_t threads) {
  std::vector<Job> jobs(static_cast<size_t>(PyList_Size(entries)));
  int64_t nbytes = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (!read_job(PyList_GetItem(entries, static_cast<Py_ssize_t>(i)), &jobs[i])) return nullptr;
    nbytes += jobs[i].numel * jobs[i].dtype.itemsize;
  }
  run(nbytes, [&] {
    for (Job& job : jobs) job.result = stats(job.p, job.numel, job.dtype, threads);
    return 0;
  });
  return results_of(jobs);
}

PyObject* py_stats_batch(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("stats_batch", values, count);
  int64_t threads = 1;
  if (!args.count_within(2, 2) || !args.natural(1, "threads", &threads)) return nullptr;
  if (!PyList_Check(values[0])) {
    PyErr_Format(PyExc_TypeError, "stats_batch(): tensors must be a list of (ptr, numel, dtype_code), got %R", values[0]);
    return nullptr;
  }
  try {
    return batch(values[0], threads);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

// CRC-32 of a layout; the optional argument `init` is at position `i`.
PyObject* crc_result(const Arguments& args, int i, const Layout& layout) {
  int64_t init = 0;
  if (args.count() > i && !args.natural(i, "init", &init)) return nullptr;
  if (init >> 32 != 0) {
    PyErr_Format(PyExc_ValueError, "%s(): init must be a CRC-32 below 2**32, got %lld", args.function(),
                 static_cast<long long>(init));
    return nullptr;
  }
  const uint32_t value = run(layout.numel * layout.itemsize, [&] {
    if (layout.contiguous()) return crc32(static_cast<uint32_t>(init), layout.base, layout.numel * layout.itemsize);
    return crc32(static_cast<uint32_t>(init), layout);
  });
  return PyLong_FromUnsignedLong(value);
}

PyObject* xor_result(const Arguments& args, int i, const Layout& layout) {
  int64_t threads = 1;
  if (!args.natural(i, "threads", &threads)) return nullptr;
  return PyLong_FromUnsignedLongLong(
      run(layout.numel * layout.itemsize, [&] { return xor64(layout, threads); }));
}

// Hash of a layout with the shape in the tuple at `shape` and the number of threads at `i`.
PyObject* hash_result(const Arguments& args, int shape, int i, const Layout& layout) {
  int64_t threads = 1, sizes[kMaxDims];
  int ndim = 0;
  if (!args.sizes(shape, "shape", sizes, &ndim) || !args.natural(i, "threads", &threads)) return nullptr;
  return PyLong_FromUnsignedLongLong(
      run(layout.numel * layout.itemsize, [&] { return hash64(layout, sizes, ndim, threads); }));
}

// The memory (ptr, nbytes) at the first two arguments.
bool read_bytes(const Arguments& args, Layout* layout) {
  int64_t nbytes = 0;
  const void* p = nullptr;
  if (!args.natural(1, "nbytes", &nbytes) || !args.address(0, nbytes, &p)) return false;
  *layout = bytes_layout(p, nbytes);
  return true;
}

// The tensor (ptr, sizes, strides, itemsize) at the first four arguments.
bool read_strided(const Arguments& args, Layout* layout) {
  int itemsize = 0;
  return args.itemsize(3, &itemsize) && args.layout(0, itemsize, layout);
}

PyObject* py_crc32(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("crc32", values, count);
  Layout layout;
  return args.count_within(2, 3) && read_bytes(args, &layout) ? crc_result(args, 2, layout) : nullptr;
}

PyObject* py_crc32_strided(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("crc32_strided", values, count);
  Layout layout;
  return args.count_within(4, 5) && read_strided(args, &layout) ? crc_result(args, 4, layout) : nullptr;
}

PyObject* py_xor64(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("xor64", values, count);
  Layout layout;
  return args.count_within(3, 3) && read_bytes(args, &layout) ? xor_result(args, 2, layout) : nullptr;
}

PyObject* py_xor64_strided(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("xor64_strided", values, count);
  Layout layout;
  return args.count_within(5, 5) && read_strided(args, &layout) ? xor_result(args, 4, layout) : nullptr;
}

PyObject* py_hash64(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("hash64", values, count);
  Layout layout;
  return args.count_within(4, 4) && read_bytes(args, &layout) ? hash_result(args, 2, 3, layout) : nullptr;
}

PyObject* py_hash64_strided(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("hash64_strided", values, count);
  Layout layout;
  return args.count_within(5, 5) && read_strided(args, &layout) ? hash_result(args, 1, 4, layout) : nullptr;
}

PyObject* py_find_nonfinite(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("find_nonfinite", values, count);
  int64_t numel = 0, code = 0;
  const void* p = nullptr;
  Dtype dtype;
  if (!args.count_within(3, 3) || !args.natural(1, "numel", &numel) || !args.dtype(2, &dtype, &code) ||
      !args.address(0, numel * dtype.itemsize, &p))
    return nullptr;
  return PyBool_FromLong(run(numel * dtype.itemsize, [&] { return find_nonfinite(p, numel, code, dtype); }));
}

PyObject* py_make_encoder(PyObject*, PyObject* spec) {
  try {
    return make_encoder(spec);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

template <PyObject* (*kEncode)(PyObject*, PyObject*)>
PyObject* py_encode(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("encode", values, count);
  if (!args.count_within(2, 2)) return nullptr;
  try {
    return kEncode(values[0], values[1]);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* py_stack_key(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("stack_key", values, count);
  if (!args.count_within(4, 4)) return nullptr;
  try {
    return stack_key(values[0], values[1], values[2], values[3] == Py_True);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* py_run_flat_call(PyObject*, PyObject* const* values, Py_ssize_t count) {
  const Arguments args("run_flat_call", values, count);
  if (!args.count_within(5, 5)) return nullptr;
  try {
    return run_flat_call(values);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* py_encoded_count(PyObject*, PyObject*) { return encoded_count(); }

PyObject* py_isa(PyObject*, PyObject*) { return PyUnicode_FromString(kernels().isa); }

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyCFunction method(Fast function) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)); }

PyMethodDef methods[] = {
    {"stats", method(py_stats), METH_FASTCALL,
     "stats(ptr, numel, dtype_code, threads) -> (max, min, sum, sumsq, nan, inf, zero) of contiguous elements"},
    {"stats_strided", method(py_stats_strided), METH_FASTCALL,
     "stats_strided(ptr, sizes, strides, dtype_code, threads) -> as stats, strides in elements, nothing copied"},
    {"stats_batch", method(py_stats_batch), METH_FASTCALL,
     "stats_batch([(ptr, numel, dtype_code), ...], threads) -> list of stats"},
    {"crc32", method(py_crc32), METH_FASTCALL, "crc32(ptr, nbytes, init=0) -> CRC-32 as zlib.crc32"},
    {"xor64", method(py_xor64), METH_FASTCALL, "xor64(ptr, nbytes, threads) -> XOR of the 64-bit words"},
    {"hash64", method(py_hash64), METH_FASTCALL, "hash64(ptr, nbytes, shape, threads) -> 64-bit hash"},
    {"crc32_strided", method(py_crc32_strided), METH_FASTCALL,
     "crc32_strided(ptr, sizes, strides, itemsize, init=0) -> crc32 of the bytes in row-major order"},
    {"xor64_strided", method(py_xor64_strided), METH_FASTCALL,
     "xor64_strided(ptr, sizes, strides, itemsize, threads) -> xor64 of the bytes in row-major order"},
    {"hash64_strided", method(py_hash64_strided), METH_FASTCALL,
     "hash64_strided(ptr, sizes, strides, itemsize, threads) -> hash64 of the bytes in row-major order"},
    {"find_nonfinite", method(py_find_nonfinite), METH_FASTCALL,
     "find_nonfinite(ptr, numel, dtype_code) -> whether an element is NaN or infinite"},
    {"make_encoder", py_make_encoder, METH_O,
     "make_encoder((types, dtypes, fragment, fallback, threads, threads_from, known, exchange, checksum)) -> capsule\n\n"
     "How to encode. A tensor whose type is in `types`, in host memory and of a dtype in `dtypes` (rows of dtype, code,\n"
     "head, precision, min_exponent, largest, saturates) becomes JSON: head, shape, Max, Min, and Mean and Norm rounded\n"
     "to the float format. Plain numbers become {type, value}, None stays, fallback(value) does the rest.\n"
     "`fragment` turns JSON bytes into a value. `known`: a dict that holds the text of tensors measured before, which\n"
     "is used again while the tensor's version is the same; None: every tensor is measured. `exchange`: the DLPack C\n"
     "exchange capsule of the tensor class, or None. `checksum`: 0 none, 1 CRC-32 beside the statistics, 2 XOR and 3\n"
     "hash instead of them."},
    {"encode_value", method(py_encode<encode_value>), METH_FASTCALL,
     "encode_value(value, encoder) -> the entry: a fragment, None, or what the fallback says"},
    {"encode_values", method(py_encode<encode_values>), METH_FASTCALL,
     "encode_values(values, encoder) -> fragment of the whole JSON list if every value is plain, else list of entries"},
    {"encode_pairs", method(py_encode<encode_pairs>), METH_FASTCALL,
     "encode_pairs(dict, encoder) -> fragment of the whole JSON object, a dict of entries if a value is not plain, or\n"
     "None if a key is not plain text"},
    {"stack_key", method(py_stack_key), METH_FASTCALL,
     "stack_key(frame, anchor, outer, inclusive) -> bytes that tell the stack from `frame` outwards to `anchor` from\n"
     "others: ids of `outer` and of code objects, and instruction offsets. `anchor`: where the walk ends, and whether\n"
     "that frame itself belongs to it (`inclusive`); None: the whole stack. None if `anchor` is not on the stack."},
    {"run_flat_call", method(py_run_flat_call), METH_FASTCALL,
     "run_flat_call(phase, function, args, kwargs, frame) -> what function(*args, **kwargs) returns, recorded as a call\n"
     "of `phase` (see flat_calls.cpp) made by `frame`; the phase itself if it is not one of its calls: then nothing has\n"
     "been done."},
    {"encoded_count", py_encoded_count, METH_NOARGS, "encoded_count() -> tensors measured by encode_values so far"},
    {"isa", py_isa, METH_NOARGS, "isa() -> 'avx512', 'avx2', 'baseline' or 'portable': the kernels in use"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "One-pass statistics and checksums of tensors in host memory.", 0, methods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

}  // namespace msprobe

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&msprobe::definition); }
