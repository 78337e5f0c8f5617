// Which messages a rank of a group exchanges in a collective, and when: without the data, so that
// the schedules of a thousand ranks can be played through in one process.
//
// Groups of up to kMostDirect ranks send directly; larger ones along a chain, a ring or a tree, so
// that a rank talks to few others. Every schedule bounds how many of its sends are under way. A
// reduction takes the ranks' contributions in rank order in all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tapestry {

/// Ranks above which a group's members do not all talk to each other.
inline constexpr int kMostDirect = 8;
/// Sends of one kind that a rank has under way at once: to one rank of a direct reduction, in each
/// direction of a chain, of a ring or an all-to-all.
inline constexpr int kWindow = 4;
/// Bytes of a segment, of a tensor that has as many.
inline constexpr int64_t kSmallestSegment = int64_t{64} << 10U;
inline constexpr int64_t kLargestSegment = int64_t{512} << 10U;

/// Up to so many bytes an all-reduce sends the whole tensor: to all in groups of up to kMostDirect
/// ranks, up and down a tree in larger ones; an all-gather of those sends pieces through the tree.
inline constexpr int64_t kSmallDirectAllReduce = int64_t{16} << 10U;
inline constexpr int64_t kSmallTreeAllReduce = kSmallestSegment;
inline constexpr int64_t kSmallTreeAllGather = int64_t{4} << 10U;  // of a piece

/// What a schedule asks for. Ranks are those of the group; `part` tells a rank's messages apart.
class ScheduleActions {
 public:
  ScheduleActions() = default;
  ScheduleActions(const ScheduleActions&) = delete;
  ScheduleActions& operator=(const ScheduleActions&) = delete;
  virtual ~ScheduleActions() = default;
  virtual void send(int to, int part) = 0;
  virtual void receive(int from, int part) = 0;
  /// What has come for a segment is to be added up.
  virtual void reduce(int64_t segment) = 0;
};

/// One rank's part of a collective. Actions may call back at once, before they return.
class Schedule {
 public:
  Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
  virtual ~Schedule() = default;
  virtual void start(ScheduleActions& actions) = 0;
  /// A message that was asked for is through. When all are, the rank has finished.
  virtual void sent(ScheduleActions& actions, int part, int to) = 0;
  virtual void received(ScheduleActions& actions, int part, int from) = 0;
};

/// A tensor of `total` elements as `ranks` pieces, of which the last may be shorter or empty, each
/// cut into segments.
struct DirectLayout {
  int ranks = 1;
  int64_t total = 0;
  int64_t piece = 0;    ///< elements
  int64_t segment = 1;  ///< elements

  /// Of an all-reduce: pieces are whole cache lines.
  static DirectLayout all_reduce(int ranks, int64_t total, int64_t element_bytes);
  /// Of a reduce-scatter: rank r's output is piece r.
  static DirectLayout reduce_scatter(int ranks, int64_t total, int64_t element_bytes);

  int64_t begin(int rank) const;
  int64_t segments(int rank) const;
  int64_t first(int rank, int64_t segment) const { return begin(rank) + segment * this->segment; }
  int64_t count(int rank, int64_t segment) const;
  static int contribution(int64_t segment) { return static_cast<int>(2 * segment); }
  static int result(int64_t segment) { return static_cast<int>(2 * segment + 1); }
  static bool is_contribution(int part) { return part % 2 == 0; }
};

/// Each rank reduces the piece that has its number: the others' segments come into kWindow slots,
/// and, in an all-reduce, the result goes to everybody.
std::unique_ptr<Schedule> make_direct_reduce(const DirectLayout& layout, int rank, bool all_reduce);

/// A tensor in equal pieces, each cut into shares; a segment is one share, or several whole pieces
/// where those are small. The first shares of all pieces come first, then the second ones: so each
/// rank gets its results in turns with the others, and no rank's link carries two streams at once.
struct ChainLayout {
  int64_t pieces = 1;
  int64_t piece = 0;  ///< elements
  int64_t share = 1;  ///< elements; the last one of a piece may have fewer
  int64_t shares_per_piece = 0;
  int64_t shares_per_segment = 1;

  /// One piece, of which all ranks get the sum.
  static ChainLayout all_reduce(int ranks, int64_t total, int64_t element_bytes);
  /// One piece a rank.
  static ChainLayout reduce_scatter(int ranks, int64_t total, int64_t element_bytes);

  int64_t shares() const { return pieces * shares_per_piece; }
  int64_t segments() const { return (shares() + shares_per_segment - 1) / shares_per_segment; }
  int64_t first_of_share(int64_t share) const;
  int64_t count_of_share(int64_t share) const;
  int64_t first(int64_t segment) const { return first_of_share(segment * shares_per_segment); }
  int64_t count(int64_t segment) const;
  int owner(int64_t share) const { return static_cast<int>(share % pieces); }
  static int sum(int64_t segment) { return static_cast<int>(2 * segment); }
  static int result(int64_t index) { return static_cast<int>(2 * index + 1); }
  static bool is_sum(int part) { return part % 2 == 0; }
};

/// The sums of the segments travel from rank 0 to the last rank, each adding its contribution; of
/// an all-reduce (one piece) the results travel back the same way, of a reduce-scatter the last
/// rank sends them to their owners. A ring that is open at the place where it would begin to add in
/// another order than that of the ranks; it moves as many bytes.
std::unique_ptr<Schedule> make_chain_reduce(const ChainLayout& layout, int ranks, int rank);

/// Each rank's piece goes round the ring: part p of the messages is rank p's piece.
std::unique_ptr<Schedule> make_ring_gather(int ranks, int rank);

/// The binomial tree with rank 0 at its root: the parent of a rank is its number without the lowest
/// bit. A subtree's ranks follow one another.
struct Tree {
  int ranks = 1;
  int rank = 0;
  int parent() const { return rank & (rank - 1); }
  int subtree() const;
  /// Nearest first.
  std::vector<int> children() const;
  static constexpr int kUp = 0;
  static constexpr int kDown = 1;
};

/// What the ranks of each subtree have goes to its parent, part kUp; the root reduces segment 0, of
/// which all get the result on the same ways, part kDown.
std::unique_ptr<Schedule> make_tree_gather_and_broadcast(int ranks, int rank);

/// A message to every other rank, beginning with the next one, and one from each: part 0.
std::unique_ptr<Schedule> make_exchange(int ranks, int rank);

}  // namespace tapestry
