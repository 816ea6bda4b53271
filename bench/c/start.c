/*
 * How long a job of two ranks takes to begin: loading a library with NCCL's functions, and making a communicator of two
 * processes; or, with -DWITH_MPI, MPI_Init. Prints microseconds; run it often and take medians (see start.sh).
 *
 *   cc -O2 start.c -o start -ldl && ./start load LIBRARY && ./start join LIBRARY
 *   mpicc -O2 -DWITH_MPI start.c -o start-mpi && mpirun -n 2 ./start-mpi
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

#ifdef WITH_MPI
#include <mpi.h>

int main(int argc, char **argv) {
  int rank;
  double begun = now_us();
  if (MPI_Init(&argc, &argv)) return 1;
  double taken = now_us() - begun;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) printf("%.1f\n", taken);
  return MPI_Finalize();
}
#else
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
  char internal[128];
} unique_id;
typedef void *comm;

static void *library;

static void *function(const char *name) {
  void *found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

/* Rank 0 makes the id and hands it to rank 1, a process that has the library already. */
static int join(void) {
  int (*get_id)(unique_id *);
  int (*init)(comm *, int, unique_id, int);
  int (*destroy)(comm);
  *(void **)&get_id = function("ncclGetUniqueId");
  *(void **)&init = function("ncclCommInitRank");
  *(void **)&destroy = function("ncclCommDestroy");
  int ends[2], status;
  unique_id id;
  comm made;
  if (pipe(ends)) return 1;
  pid_t other = fork();
  if (other == 0) {
    if (read(ends[0], &id, sizeof id) != (ssize_t)sizeof id || init(&made, 2, id, 1)) return 1;
    return destroy(made);
  }
  double begun = now_us();
  if (get_id(&id) || write(ends[1], &id, sizeof id) != (ssize_t)sizeof id || init(&made, 2, id, 0)) return 1;
  printf("%.1f\n", now_us() - begun);
  int result = destroy(made);
  return waitpid(other, &status, 0) != other || status || result;
}

int main(int argc, char **argv) {
  if (argc != 3 || (strcmp(argv[1], "load") && strcmp(argv[1], "join"))) {
    fprintf(stderr, "usage: %s load|join LIBRARY\n", argv[0]);
    return 2;
  }
  double begun = now_us();
  library = dlopen(argv[2], RTLD_NOW);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (!strcmp(argv[1], "load")) {
    printf("%.1f\n", now_us() - begun);
    return 0;
  }
  return join();
}
#endif
