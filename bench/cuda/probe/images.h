/*
 * The library's images: whether the driver loads the machine code for this device, and how long it compiles the text.
 */
#ifndef PROBE_IMAGES_H
#define PROBE_IMAGES_H

#include <dirent.h>
#include <sys/wait.h>

#include "waits.h"

static std::vector<std::string> files(const std::string &directory, const std::string &ends) {
  std::vector<std::string> found;
  DIR *open = opendir(directory.c_str());
  while (dirent *each = open ? readdir(open) : NULL) {
    std::string name = each->d_name;
    if (name.size() > ends.size() && name.compare(name.size() - ends.size(), ends.size(), ends) == 0)
      found.push_back(name);
  }
  if (open) closedir(open);
  std::sort(found.begin(), found.end());
  return found;
}

/* Cubins run on later minor versions of their major version. */
static std::string machine_code_end() {
  return ".sm_" + std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) + "0.cubin";
}

/* Loads an image with all its functions and says what they need. */
static void load_image(const char *what, const std::string &directory, const std::string &name) {
  std::vector<char> image = read_file(directory + "/" + name);
  CUmodule module;
  unsigned count = 0;
  int registers_most = 0, local_most = 0, blocks_least = 1 << 20;
  double begun = now_us();
  CUresult result = driver.ModuleLoadData(&module, image.data());
  double loaded_ms = (now_us() - begun) / 1e3;
  if (result != CUDA_SUCCESS) {
    say(what, "failed", "\"image\":\"%s\",\"error\":\"%s\"", name.c_str(), name_of(result).c_str());
    return;
  }
  std::vector<CUfunction> functions;
  if (driver.ModuleGetFunctionCount && driver.ModuleEnumerateFunctions) {
    OK(driver.ModuleGetFunctionCount(&count, module));
    functions.resize(count);
    OK(driver.ModuleEnumerateFunctions(functions.data(), count, module));
  }
  for (CUfunction function : functions) {
    int registers = 0, local = 0, blocks = 0;
    OK(driver.FuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
    OK(driver.FuncGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
    OK(driver.OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 512, 0));
    registers_most = std::max(registers_most, registers), local_most = std::max(local_most, local);
    blocks_least = std::min(blocks_least, blocks);
  }
  say(what, local_most ? "needs local memory" : "loaded",
      "\"image\":\"%s\",\"load_ms\":%.1f,\"with functions ms\":%.1f,\"functions\":%u,\"registers at most\":%d,"
      "\"local bytes at most\":%d,\"blocks of 512 threads at least\":%d",
      name.c_str(), loaded_ms, (now_us() - begun) / 1e3, count, registers_most, local_most,
      functions.empty() ? -1 : blocks_least);
}

static void machine_code(const std::string &directory) {
  std::vector<std::string> names = files(directory, machine_code_end());
  if (names.empty()) ended("machine code", "no " + machine_code_end() + " in " + directory);
  for (const std::string &name : names) load_image("machine code", directory, name);
}

/* All texts at once, a process each, as only processes compile side by side; what is compiled stays in the cache. */
static int texts(const std::string &directory) {
  std::vector<std::string> names = files(directory, ".ptx");
  int failed = 0, status;
  if (names.empty()) ended("texts", "no .ptx in " + directory);
  for (const std::string &name : names)
    if (fork() == 0) {
      alarm(55);
      open_device();
      load_image("text", directory, name);
      _exit(is_wrong);
    }
  while (wait(&status) > 0) failed += status != 0;
  return failed != 0;
}

#endif
