// The float status register of the device, cleared and read in stream order.
//
// Both operators only queue a task: the host never waits, and the pending tasks of torch_npu's queue are not drained.

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "acl/acl_rt.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/OpCommand.h"

namespace {

constexpr uint64_t kStatusBytes = 64;
constexpr uint32_t kCheckMode = 0;  // the only mode that the runtime defines

aclrtStream current_stream() {
  constexpr bool drain_queue = false;
  return c10_npu::getCurrentNPUStream().stream(drain_queue);
}

void clear_float_status(const at::Tensor& anchor) {
  c10::DeviceGuard guard(anchor.device());
  aclrtStream stream = current_stream();
  at_npu::native::OpCommand::RunOpApi("MsprobeClearFloatStatus", [stream]() -> int {
    return aclrtNpuClearFloatOverFlowStatus(kCheckMode, stream);
  });
}

// `addresses` is int64[n] on the device: element i holds the device address of the 64 bytes that receive status i.
// The runtime wants exactly that, the address of a device word with the address of the output.
void read_float_status(const at::Tensor& addresses, int64_t index) {
  TORCH_CHECK_INDEX(index >= 0 && index < addresses.numel(), "read_float_status: index ", index, " of a table of ",
                    addresses.numel(), " addresses");
  TORCH_CHECK(addresses.scalar_type() == at::kLong && addresses.is_contiguous(),
              "read_float_status: expected a contiguous int64 table, got ", addresses.toString());
  c10::DeviceGuard guard(addresses.device());
  aclrtStream stream = current_stream();
  void* word = addresses.data_ptr<int64_t>() + index;
  // The copy keeps the table alive until the queued task has run.
  at_npu::native::OpCommand::RunOpApi("MsprobeReadFloatStatus", [word, stream, keep = addresses]() -> int {
    return aclrtNpuGetFloatOverFlowStatus(word, kStatusBytes, kCheckMode, stream);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(msprobe_npu, library) {
  library.def("clear_float_status(Tensor anchor) -> ()");
  library.def("read_float_status(Tensor addresses, int index) -> ()");
}

TORCH_LIBRARY_IMPL(msprobe_npu, PrivateUse1, library) {
  library.impl("clear_float_status", &clear_float_status);
  library.impl("read_float_status", &read_float_status);
}
