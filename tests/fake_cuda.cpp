// A stand-in for libcuda.so.1 under `_cuda_driver`: one context, and a compiler that knows PTX by its
// directives. Signatures and error codes are those of the CUDA driver API reference
// (docs.nvidia.com/cuda/cuda-driver-api). A test sets the context and reads the launches.
#include <unistd.h>

#include <string>

namespace {
enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500 };
void* context = nullptr;
int module, function, launches = 0;
void* launched_on = nullptr;
int initialised_by = 0;  // a process; its forks cannot
}  // namespace

extern "C" {
void fake_context(void* to) { context = to; launches = 0; }
int fake_launches(void** stream) { *stream = launched_on; return launches; }

int cuInit(unsigned) {
  if (!initialised_by) initialised_by = getpid();
  return initialised_by == getpid() ? OK : NOT_INITIALIZED;
}
int cuCtxGetCurrent(void** to) { *to = context; return OK; }
int cuModuleLoadData(void** to, const char* image) {
  if (!context) return INVALID_CONTEXT;
  std::string ptx(image), line = ptx.substr(0, ptx.find('\n'));
  if (line != ".version 7.0" || ptx.find(".target sm_50\n") == ptx.npos) return INVALID_PTX;
  if (ptx.find(".visible .entry siliconprof_empty()") == ptx.npos) return INVALID_PTX;
  *to = &module;
  return OK;
}
int cuModuleGetFunction(void** to, void* of, const char* name) {
  if (of != &module || std::string(name) != "siliconprof_empty") return NOT_FOUND;
  *to = &function;
  return OK;
}
int cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  if (!context) return INVALID_CONTEXT;
  bool alone = gx == 1 && gy == 1 && gz == 1 && bx == 1 && by == 1 && bz == 1 && !shared;
  if (kernel != &function || !alone || parameters || extra) return INVALID_VALUE;
  launched_on = stream;
  ++launches;
  return OK;
}
int cuGetErrorName(int code, const char** to) {
  *to = code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_OTHER";
  return OK;
}
int cuGetErrorString(int code, const char** to) { *to = "invalid device context"; return OK; }
}
