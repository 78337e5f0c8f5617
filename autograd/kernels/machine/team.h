// The threads that loops run on.
#pragma once

namespace tapestry {

/// Threads that loops and products started by the calling thread use: OMP_NUM_THREADS, or as many
/// as there are cores, unless set_num_threads() said otherwise. 1 inside a loop, and in a thread
/// rank.
int num_threads();

/// Sets the team size of the calling thread.
void set_num_threads(int count);

namespace kernels {

/// Whether the calling thread is running a part of run_parts().
bool in_team();

/// Calls body(context, part) for each part in [0, parts), parts > 1, on the calling thread and up
/// to parts - 1 threads of its own, which are kept for the next call. Part 0 is the caller's, part
/// i by preference thread i's, so that the same share of an array meets the same core again;
/// whoever is done takes parts that nobody has begun, the caller too. A thread that the system has
/// not scheduled therefore holds nobody up, as it would where the processes of several users share
/// the cores. Threads that wait spin for some ten microseconds, then sleep.
///
/// Parts inherit the caller's TeamState. What they throw reaches the caller when all have ended: of
/// several exceptions, one. Not to be called inside a part.
/// As many parts as anybody asks for are possible, up to 65,535.
void run_parts(int parts, void (*body)(const void* context, int part), const void* context);

/// While it lives, what the calling thread calls in OpenBLAS and oneDNN runs on this thread alone.
class LibraryAlone {
 public:
  LibraryAlone();
  LibraryAlone(const LibraryAlone&) = delete;
  LibraryAlone& operator=(const LibraryAlone&) = delete;
  ~LibraryAlone();

 private:
  [[maybe_unused]] int before_;  // without OpenMP there is nothing to restore
};

}  // namespace kernels
}  // namespace tapestry
