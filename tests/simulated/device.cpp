// What torch asks of CUDA or, compiled with -DPLAYED_MPS, of Apple's MPS from its own C++: which device is
// current, whether there is one, whether memory is page-locked, who waits. A device guard and hooks,
// as `c10/core/impl/DeviceGuardImplInterface.h`, `ATen/detail/CUDAHooksInterface.h` and
// `MPSHooksInterface.h` ask for them; the device itself is simulated in simulated_cuda.py or simulated_mps.py.
// It must be loaded before torch asks for its hooks for the first time.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <map>
#include <mutex>

namespace {
#ifdef PLAYED_MPS
constexpr auto kind = c10::DeviceType::MPS;
#else
constexpr auto kind = c10::DeviceType::CUDA;
#endif
c10::DeviceIndex devices = 0;
void (*on_synchronize)() = nullptr;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kind; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kind, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device of) const override {
    return c10::Stream(c10::Stream::DEFAULT, of);
  }
  c10::Stream exchangeStream(c10::Stream to) const override { return to; }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override { on_synchronize(); }
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
#ifdef PLAYED_MPS
struct PlayedHooks : MPSHooksInterface {
  bool hasMPS() const override { return devices > 0; }
  bool isOnMacOSorNewer(unsigned major, unsigned) const override { return major <= 15; }
  void deviceSynchronize() const override { on_synchronize(); }
#else
struct PlayedHooks : CUDAHooksInterface {
  PlayedHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return devices > 0; }
  std::string showConfig() const override { return "  - CUDA, simulated\n"; }
  int getNumGPUs() const override { return devices; }
  DeviceIndex current_device() const override { return 0; }
#endif
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return devices > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return devices; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> held(lock);
    auto next = pinned.upper_bound(data);
    if (next == pinned.begin()) return false;
    auto [start, size] = *std::prev(next);
    return data < static_cast<const char*>(start) + size;
  }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
};
#ifdef PLAYED_MPS
C10_REGISTER_CLASS(MPSHooksRegistry, MPSHooks, PlayedHooks)
#else
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, PlayedHooks)
#endif
}  // namespace at

extern "C" void simulated_install(int count, void (*synchronize)()) {
  devices = count;
  on_synchronize = synchronize;
  auto slot = static_cast<size_t>(kind);
  c10::impl::device_guard_impl_registry[slot].store(&guard);
}
