// What torch asks of CUDA from its own C++: which device is current, whether memory is page-locked,
// who waits. A device guard and CUDA's hooks, as `c10/core/impl/DeviceGuardImplInterface.h` and
// `ATen/detail/CUDAHooksInterface.h` ask for them; the device itself is simulated in simulated_cuda.py.
// It must be loaded before torch asks for its hooks for the first time.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <map>
#include <mutex>

namespace {
thread_local c10::DeviceIndex current = 0;
c10::DeviceIndex devices = 0;
void (*on_synchronize)(int) = nullptr;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device to) const override {
    auto before = getDevice();
    uncheckedSetDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, current}; }
  void setDevice(c10::Device to) const override { uncheckedSetDevice(to); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.has_index()) current = to.index();
  }
  c10::Stream getStream(c10::Device of) const override {
    return c10::Stream(c10::Stream::DEFAULT, of);
  }
  c10::Stream exchangeStream(c10::Stream to) const override { return to; }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex index) const override { on_synchronize(index); }
};
Guard guard;

std::mutex lock;
std::map<const void*, size_t> pinned;  // start -> bytes

void unpin(void* start) {
  {
    std::lock_guard<std::mutex> held(lock);
    pinned.erase(start);
  }
  std::free(start);
}
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* start = std::aligned_alloc(64, (size + 63) / 64 * 64);
    std::lock_guard<std::mutex> held(lock);
    pinned[start] = size;
    return {start, start, &unpin, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};
PinnedAllocator pinned_allocator;
}  // namespace

namespace at {
struct PlayedHooks : CUDAHooksInterface {
  PlayedHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return devices > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return devices > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return devices; }
  std::string showConfig() const override { return "  - CUDA, simulated\n"; }
  int getNumGPUs() const override { return devices; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> held(lock);
    auto next = pinned.upper_bound(data);
    if (next == pinned.begin()) return false;
    auto [start, size] = *std::prev(next);
    return data < static_cast<const char*>(start) + size;
  }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, PlayedHooks)
}  // namespace at

extern "C" {
void simulated_install(int count, void (*synchronize)(int)) {
  devices = count;
  on_synchronize = synchronize;
  auto slot = static_cast<size_t>(c10::DeviceType::CUDA);
  c10::impl::device_guard_impl_registry[slot].store(&guard);
}
int simulated_device(int to) {  // -1 = only ask
  int before = current;
  if (to >= 0) current = to;
  return before;
}
}
