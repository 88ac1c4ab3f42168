// The kernels in portable C++: every processor, and x86-64 ones without AVX2.
#include "lanes_portable.h"

#include "table.h"

namespace msprobe {

#if defined(MSPROBE_X86)
const KernelTable kPortable = make_table("baseline");
#else
const KernelTable kPortable = make_table("portable");
#endif

}  // namespace msprobe
