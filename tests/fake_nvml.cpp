// A stand-in for libnvidia-ml.so.1 under the real Python bindings (nvidia-ml-py 13.615.71): one
// GPU, whose energy counter counts what its power makes in real time. Signatures, structures,
// units (mJ, mW, MHz) and error codes are those of pynvml.py 13.615.71 and of NVIDIA's NVML API
// reference (docs.nvidia.com/deploy/nvml-api). A test sets what it shows with `fake_set`.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };
std::mutex lock;
std::map<std::string, double> shown;
double energy_mj = 0, changed_s = 0;

double now_s() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}
double refreshed_s() {  // the counter moves once a period
  double period = shown.count("counter_period_s") ? shown["counter_period_s"] : 0.01;
  return period > 0 ? std::floor(now_s() / period) * period : changed_s;
}
int answer(const char* query) {
  if (shown["lost"]) return int(shown["lost"]);
  if (shown.count(std::string("no ") + query)) return NOT_SUPPORTED;
  return OK;
}
template <typename T> int give(const char* name, T* to) {
  std::lock_guard<std::mutex> held(lock);
  if (int error = answer(name)) return error;
  *to = T(shown[name]);
  return OK;
}
}  // namespace

extern "C" {
struct Utilization { unsigned gpu, memory; };
struct Temperature { unsigned version, sensor; int temperature; };
struct FieldValue {
  unsigned id, scope;
  long long timestamp, latency_us;
  unsigned type;
  int result;
  union { unsigned value; unsigned long long wide; };
};
struct Process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

void fake_set(const char* name, double value) {
  std::lock_guard<std::mutex> held(lock);
  double to = refreshed_s();
  if (to > changed_s) {  // what the old power has made until now
    if (changed_s > 0) energy_mj += shown["power_mw"] * (to - changed_s);
    changed_s = to;
  }
  shown[name] = value;
}
void fake_reset() {
  std::lock_guard<std::mutex> held(lock);
  shown.clear();
  energy_mj = 1e9;
  changed_s = now_s();
}
int nvmlInitWithFlags(unsigned) { return OK; }
const char* nvmlErrorString(int) { return "an error"; }
int nvmlSystemGetDriverVersion(char* to, unsigned length) {
  std::strncpy(to, "580.65.06", length);
  return OK;
}
int nvmlDeviceGetCount_v2(unsigned* to) { *to = 1; return OK; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** to) {
  *to = &shown;
  return std::strcmp(uuid, "GPU-fa4e0000-0000-0000-0000-000000000000") ? NOT_FOUND : OK;
}
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* to) {
  std::lock_guard<std::mutex> held(lock);
  if (int error = answer("energy")) return error;
  *to = (unsigned long long)(energy_mj + shown["power_mw"] * (refreshed_s() - changed_s));
  return OK;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* to) {
  static unsigned noise = 0;  // no two readings of a power sensor are equal
  int error = give("power_mw", to);
  if (!error) *to += noise++ % 7;
  return error;
}
int nvmlDeviceGetFieldValues(void*, int count, FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    bool is_power = values[i].id == 186;  // NVML_FI_DEV_POWER_INSTANT
    values[i].result = is_power ? give("power_mw", &values[i].value) : NOT_SUPPORTED;
  }
  return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* to) { return give("limit_mw", to); }
int nvmlDeviceGetClockInfo(void*, unsigned type, unsigned* to) {
  return give(type == 1 ? "sm_mhz" : "memory_mhz", to);
}
int nvmlDeviceGetTemperatureV(void*, Temperature* to) {
  if (to->version != 0x100000C) return VERSION_MISMATCH;
  return give("temperature_c", &to->temperature);
}
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* to) { return give("temperature_c", to); }
int nvmlDeviceGetPerformanceState(void*, unsigned* to) { return give("pstate", to); }
int nvmlDeviceGetUtilizationRates(void*, Utilization* to) {
  return give("busy_percent", &to->gpu);
}
int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* to) {
  return give("reasons", to);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* to) {
  return give("reasons", to);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* to) {
  std::lock_guard<std::mutex> held(lock);
  if (int error = answer("processes")) return error;
  unsigned there = (shown["pid 0"] > 0) + (shown["pid 1"] > 0);
  if (*count < there) { *count = there; return there ? INSUFFICIENT_SIZE : OK; }
  *count = 0;
  for (const char* index : {"0", "1"}) {
    unsigned pid = unsigned(shown[std::string("pid ") + index]);
    if (pid) to[(*count)++] = {pid, (unsigned long long)(shown[std::string("bytes ") + index]), 0, 0};
  }
  return OK;
}
}
