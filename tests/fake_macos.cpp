// A stand-in for macOS's libSystem: notify(3) (<notify.h>), thermal pressure levels of
// <libkern/OSThermalNotification.h>, and host_statistics64 with `struct vm_statistics64` of
// <mach/vm_statistics.h>, offsets as in xnu's osfmk/mach/vm_statistics.h.
#include <cstdint>
#include <cstring>

namespace {
uint64_t level = 0, swapped_in = 0, swapped_out = 0;
unsigned fields = 38;  // of the kernel's struct, in integers
}

extern "C" {
void fake_set(uint64_t pressure, uint64_t in, uint64_t out) {
  level = pressure; swapped_in = in; swapped_out = out;
}
uint32_t notify_register_check(const char* name, int* token) {
  *token = 17;
  return std::strcmp(name, "com.apple.system.thermalpressurelevel") ? 1 : 0;
}
uint32_t notify_get_state(int token, uint64_t* to) {
  *to = level;
  return token == 17 ? 0 : 2;  // NOTIFY_STATUS_INVALID_TOKEN
}
void fake_fields(unsigned count) { fields = count; }
unsigned mach_host_self() { return 4099; }
int host_statistics64(unsigned host, int flavor, char* to, unsigned* count) {
  if (host != 4099 || flavor != 4 || *count < 38) return 4;  // KERN_INVALID_ARGUMENT
  if (*count < fields) {
    *count = fields;
    return -307;  // MIG_ARRAY_TOO_LARGE
  }
  std::memset(to, 0xff, 4 * fields);
  std::memcpy(to + 112, &swapped_in, 8);
  std::memcpy(to + 120, &swapped_out, 8);
  return 0;
}
}
