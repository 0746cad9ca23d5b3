// What torch asks of MPS from its own C++: which device is current, whether there is one, who waits.
// A device guard and MPS's hooks, as `c10/core/impl/DeviceGuardImplInterface.h` and
// `ATen/detail/MPSHooksInterface.h` ask for them; the device itself is simulated in simulated_mps.py.
// It must be loaded before torch asks for its hooks for the first time.
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
void (*on_synchronize)() = nullptr;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::MPS; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::DeviceType::MPS, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device of) const override {
    return c10::Stream(c10::Stream::DEFAULT, of);
  }
  c10::Stream exchangeStream(c10::Stream to) const override { return to; }
  c10::DeviceIndex deviceCount() const noexcept override { return on_synchronize ? 1 : 0; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override { on_synchronize(); }
};
Guard guard;
}  // namespace

namespace at {
struct PlayedHooks : MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override { return on_synchronize != nullptr; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return hasMPS(); }
  bool isOnMacOSorNewer(unsigned major, unsigned) const override { return major <= 15; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return hasMPS() ? 1 : 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void deviceSynchronize() const override { on_synchronize(); }
};
C10_REGISTER_CLASS(MPSHooksRegistry, MPSHooks, PlayedHooks)
}  // namespace at

extern "C" void simulated_install(void (*synchronize)()) {
  on_synchronize = synchronize;
  auto slot = static_cast<size_t>(c10::DeviceType::MPS);
  c10::impl::device_guard_impl_registry[slot].store(&guard);
}
