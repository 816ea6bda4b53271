/*
 * What the driver and the GPU do where CUDA's documents do not say, and what it costs: experiments for the device paths,
 * each with an answer. They take no part in anything else.
 *
 *   nvcc -O3 -std=c++17 -arch=native probe.cu -o probe -ldl -lpthread
 *   probe [EXPERIMENT] [--images DIRECTORY]
 *
 *   attributes       what the device has: multiprocessors, stream memory operations, occupancy
 *   together         whether two kernels of a context run together: cooperative and plain, and with a third one behind the
 *                    first; `together-one-queue` with CUDA_DEVICE_MAX_CONNECTIONS=1
 *   queues           with how many streams a stream shares a hardware queue
 *   waits            which calls of the driver wait for a kernel that spins
 *   capture          which calls beside a capture are refused or invalidate it
 *   fence record launch calls   what they cost
 *   litmus-device litmus-pinned   whether readers see what was written before the flag they saw
 *   machine-code     loads the library's cubins for this device; `texts` compiles its PTX (DIRECTORY: those of
 *                    kernels/cuda/images, each unpacked by zlib)
 *
 * Without EXPERIMENT all of them, each in a process of its own, which is ended after its limit. Prints one JSON object a
 * line, at once. Ends with 1 if an experiment failed, hung or found something wrong. No kernel spins longer than five
 * seconds. Absent: several devices.
 */
#include "probe/capture.h"
#include "probe/costs.h"
#include "probe/host.h"
#include "probe/images.h"
#include "probe/litmus.h"
#include "probe/together.h"
#include "probe/waits.h"

static std::string images;

struct Experiment {
  const char *name;
  /* Seconds. */
  unsigned limit_s;
  /* A setting of its process, or NULL. */
  const char *setting, *value;
  std::function<int()> run;
};

static int on_device(const std::function<void()> &body) {
  open_device();
  body();
  return is_wrong;
}

static void waits_with_image() {
  std::vector<std::string> names = files(images, machine_code_end());
  waits(names.empty() ? std::vector<char>() : read_file(images + "/" + names[0]));
}

static const std::vector<Experiment> experiments = {
    {"attributes", 20, NULL, NULL, [] { return on_device(attributes); }},
    {"together", 20, NULL, NULL, [] { return on_device(together); }},
    {"together-one-queue", 20, "CUDA_DEVICE_MAX_CONNECTIONS", "1", [] { return on_device(together); }},
    {"queues", 20, NULL, NULL, [] { return on_device(queues); }},
    {"waits", 20, NULL, NULL, [] { return on_device(waits_with_image); }},
    {"capture", 20, NULL, NULL, [] { return on_device(captures); }},
    {"fence", 20, NULL, NULL, [] { return on_device(fences); }},
    {"record", 20, NULL, NULL, [] { return on_device(records); }},
    {"launch", 20, NULL, NULL, [] { return on_device(launches); }},
    {"calls", 20, NULL, NULL, [] { return on_device(calls); }},
    {"litmus-device", 20, NULL, NULL, [] { return on_device([] { litmus(false); }); }},
    {"litmus-pinned", 20, NULL, NULL, [] { return on_device([] { litmus(true); }); }},
    {"machine-code", 20, NULL, NULL, [] { return on_device([] { machine_code(images); }); }},
    /* Calls no driver itself, as it forks. */
    {"texts", 60, NULL, NULL, [] { return texts(images); }},
};

/* Runs an experiment in a process of its own and says so if it did not end well. */
static bool in_process(const Experiment &each, const char *program) {
  int status = 0;
  double begun = now_us();
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    if (each.setting) setenv(each.setting, each.value, 1);
    execl(program, program, each.name, "--images", images.c_str(), (char *)NULL);
    _exit(127);
  }
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (now_us() - begun > each.limit_s * 1e6) {
      kill(child, SIGKILL);
      /* It may not be gone before the driver lets it go, which is not waited for. */
      say(each.name, "hung", "\"seconds\":%u", each.limit_s);
      return false;
    }
    usleep(5000);
  }
  if (WIFSIGNALED(status)) {
    bool is_late = WTERMSIG(status) == SIGALRM;
    say(each.name, is_late ? "hung" : "failed", "\"signal\":%d", WTERMSIG(status));
  } else if (WEXITSTATUS(status)) say(each.name, "failed", "\"ended with\":%d", WEXITSTATUS(status));
  else say(each.name, "done", "\"seconds\":%.1f", (now_us() - begun) / 1e6);
  return status == 0;
}

int main(int argc, char **argv) {
  const char *name = NULL;
  bool is_well = true, is_known = false;
  for (int at = 1; at < argc; at++) {
    if (!strcmp(argv[at], "--images") && at + 1 < argc) images = argv[++at];
    else name = argv[at];
  }
  for (const Experiment &each : experiments) {
    if (!name) is_well &= in_process(each, "/proc/self/exe");
    else if (!strcmp(name, each.name)) {
      is_known = true, running = each.name;
      if (each.setting) setenv(each.setting, each.value, 1);
      alarm(each.limit_s - 2);
      is_well = each.run() == 0;
    }
  }
  if (name && !is_known) {
    fprintf(stderr, "there is no experiment %s: see the head of probe.cu\n", name);
    return 2;
  }
  return is_well ? 0 : 1;
}
