#include "parallel_core/comm/communicator.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <system_error>
#include <utility>

#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// FNV-1a: the same number on every rank, whatever its standard library.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return hash;
}

// Calls of each group that are remembered for reports.
constexpr size_t kCallsKept = 64;

// Notes for reports which call the rank is in.
class InCall {
 public:
  InCall(Operation*& slot, Operation& operation) : slot_(slot) { slot_ = &operation; }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;
  ~InCall() { slot_ = nullptr; }

 private:
  Operation*& slot_;
};

}  // namespace

// While the rank is in a call, the thread behind it is not; what is still under way afterwards is
// that one's to move on.
class Communicator::Inside {
 public:
  explicit Inside(Communicator& communicator) : c_(communicator), lock_(communicator.mutex_) {}
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() {
    if (c_.in_background_ > 0 && c_.background_ != nullptr) {
      c_.background_->wake();
    }
  }

 private:
  Communicator& c_;
  std::unique_lock<std::mutex> lock_;
};

Communicator::Communicator(std::unique_ptr<Transport> transport,
                           const CommunicationOptions& options)
    : transport_(options.wrap_transport ? options.wrap_transport(std::move(transport))
                                        : std::move(transport)),
      options_(options),
      tally_(transport_->rank(), *options_.hosts),
      stragglers_(transport_->size()),
      waits_told_(observer_clock()),
      watch_(*this) {}

Communicator::~Communicator() { background_.reset(); }

void Communicator::leave() {
  const std::scoped_lock lock(mutex_);
  transport_->leave();
}

void Communicator::close() {
  background_.reset();
  transport_.reset();
}

uint64_t Communicator::register_group(const std::string& name,
                                      const std::vector<int>& world_ranks) {
  const std::scoped_lock lock(mutex_);
  std::string key = name + ":";
  for (const int rank : world_ranks) {
    key += std::to_string(rank) + ",";
  }
  const uint64_t same_before = groups_made_[hash_of(key)]++;
  const uint64_t id = hash_of(key + "#" + std::to_string(same_before));
  group_names_[id] = name;
  return id;
}

const std::string& Communicator::group_name(uint64_t group) const {
  static const std::string kUnknown = "a group that this rank has not made";
  const auto found = group_names_.find(group);
  return found == group_names_.end() ? kUnknown : found->second;
}

std::string Communicator::describe(const Label& label) const {
  return to_string(label, group_name(label.group));
}

std::string Communicator::describe_background() const {
  for (const auto& [key, entry] : entries_) {
    if (entry.operation != nullptr) {
      return concat("computes while ", describe(entry.operation->label()), " is under way");
    }
  }
  return "";
}

Communicator::OperationKey Communicator::key_of(const Label& label, int source) {
  return {label.group, label.is_message() ? source : -1, label.sequence};
}

// The entry in which what the operation receives is kept. A send receives nothing.
Communicator::OperationKey Communicator::key_of(const Operation& operation) {
  return key_of(operation.label(), operation.label().root);
}

void Communicator::start(const std::shared_ptr<Operation>& operation) {
  const Inside inside(*this);
  throw_if_failed();
  check<CommError>(!ended_, describe(operation->label()), ": this rank has finished");
  const InCall in_call(in_call_, *operation);
  ++activity_;
  const Label& label = operation->label();
  if (label.collective != Collective::kSend) {
    Entry& entry = entries_[key_of(*operation)];
    entry.operation = operation;
    if (!label.is_message()) {
      std::deque<Label>& calls = calls_[label.group];
      calls.push_back(label);
      if (calls.size() > kCallsKept) {
        calls.pop_front();
      }
    }
    for (const auto& [key, arrival] : entry.arrived) {
      check_agreement(*operation, arrival);
    }
  }
  operation->start(*this);
  settle(operation);
  progress();
  throw_if_failed();
  if (operation->background_ == Operation::Background::kYes) {
    move_in_background(*operation);
  }
}

void Communicator::move_in_background(Operation& operation) {
  if (operation.finished() || operation.in_background_ ||
      options_.progress != CommProgress::kThread) {
    return;
  }
  if (background_ == nullptr) {
    try {
      background_ = std::make_unique<BackgroundProgress>(
          mutex_, [this] { return in_background_ > 0 && !failure_ && !ended_; },
          [this] { return background_step(); });
    } catch (const std::system_error& error) {
      throw CommError(concat(describe(operation.label()),
                             ": the system has no thread that could move it on while the rank "
                             "computes (",
                             error.what(), "); TAPESTRY_COMM_PROGRESS=wait needs none"));
    }
  }
  operation.in_background_ = true;
  ++in_background_;
}

bool Communicator::done(Operation& operation) {
  if (!operation.finished()) {
    const Inside inside(*this);
    try {
      move_in_background(operation);
    } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): wait() needs no thread
    }
  }
  return operation.finished();
}

// What goes wrong while the rank computes is thrown by its next call.
bool Communicator::background_step() {
  const uint64_t before = activity_;
  try {
    progress();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  return activity_ != before;
}

template <class IsDone, class OnIdle>
void Communicator::progress_until(const IsDone& is_done, const OnIdle& on_idle) {
  auto last_news = Clock::now();
  uint64_t seen = activity_;
  while (!is_done()) {
    progress();
    throw_if_failed();
    if (activity_ != seen) {
      seen = activity_;
      last_news = Clock::now();
      continue;
    }
    const double idle = seconds_since(last_news);
    on_idle(idle);
    transport_->pause(idle);
  }
}

void Communicator::wait(Operation& operation) {
  if (operation.finished()) {
    return;
  }
  const Inside inside(*this);
  throw_if_failed();
  const InCall in_call(in_call_, operation);
  const double begun = observer_clock();
  progress_until([&] { return operation.finished(); }, [&](double idle) { watch_.idle(idle); });
  const int last = operation.last_through_ > begun ? operation.last_source_ : -1;
  tally_.add(begun, observer_clock(), last, operation.last_announced_, operation.last_through_);
}

std::string Communicator::tell_waits() {
  const Inside inside(*this);
  const double now = observer_clock();
  if (options_.straggler_seconds <= 0 || now - waits_told_ < options_.straggler_seconds) {
    return "";
  }
  waits_told_ = now;
  const RankWaits own = tally_.take(now);
  if (rank() != 0) {
    send_control(0, Control::kWaits, own.serialize());
    return "";
  }
  stragglers_.hear(0, own);
  return stragglers_.look(*options_.hosts);
}

void Communicator::send(
    Operation& operation, int destination, int part, const void* data, int64_t bytes) {
  Envelope envelope;
  envelope.source = rank();
  envelope.part = part;
  envelope.label = operation.label();
  envelope.bytes = bytes;
  if (envelope.label.is_message()) {
    envelope.label.root = -1;  // used for the peer, see key_of
  }
  ++envelopes_sent_;
  ++activity_;
  ++operation.under_way_;
  Moving moving{transport_->send(destination, envelope, data), operation.shared_from_this(),
                destination, part, true};
  if (moving.transfer == nullptr) {
    through(moving);
  } else {
    moving_.push_back(std::move(moving));
  }
}

void Communicator::receive(Operation& operation, int source, int part, void* data, int64_t bytes) {
  ++activity_;
  ++operation.under_way_;
  Entry& entry = entries_[key_of(operation)];
  const Expected expected{data, bytes};
  const auto arrived = entry.arrived.find({source, part});
  if (arrived == entry.arrived.end()) {
    entry.expected[{source, part}] = expected;
    if (watch_.has_ended(source)) {
      check_ended();
    }
    return;
  }
  const Arrival arrival = std::move(arrived->second);
  entry.arrived.erase(arrived);
  match(operation.shared_from_this(), arrival, expected);
}

void Communicator::match(const std::shared_ptr<Operation>& operation,
                         const Arrival& arrival,
                         const Expected& expected) {
  const Envelope& envelope = arrival.envelope;
  if (envelope.bytes != expected.bytes) {
    watch_.stop(concat("the ranks disagree: in ", describe(operation->label()), " rank ",
                       envelope.source, " sends ", envelope.bytes, " bytes, rank ", rank(),
                       " expects ", expected.bytes));
  }
  Moving moving{nullptr, operation, envelope.source, envelope.part, false, observer_clock()};
  if (envelope.bytes > Envelope::kInlineBytes) {
    moving.transfer = transport_->fetch(arrival, expected.data);
    if (moving.transfer != nullptr) {
      moving.bytes = envelope.bytes;
      tally_.fetch_begins(envelope.source, moving.announced);
    }
  } else {
    std::copy(arrival.inline_data.begin(), arrival.inline_data.end(),
              static_cast<std::byte*>(expected.data));
  }
  if (moving.transfer == nullptr) {
    through(moving);
  } else {
    moving_.push_back(std::move(moving));
  }
}

void Communicator::check_agreement(const Operation& operation, const Arrival& arrival) {
  Label mine = operation.label();
  if (mine.is_message()) {
    mine.root = -1;
  }
  const Label& theirs = arrival.envelope.label;
  if (!agree(mine, theirs)) {
    watch_.stop(concat("the ranks disagree: rank ", rank(), " is in ", describe(mine), ", rank ",
                       arrival.envelope.source, " in ", describe(theirs)));
  }
}

// A collective that this rank has finished received all that it should: another message shows that
// it was another call.
void Communicator::check_not_over(const Envelope& envelope) {
  const Label& label = envelope.label;
  const auto found = calls_.find(label.group);
  if (found == calls_.end() || found->second.back().sequence < label.sequence) {
    return;
  }
  const std::deque<Label>& calls = found->second;
  const uint64_t ago = calls.back().sequence - label.sequence;
  const std::string call = ago < calls.size()
                               ? "is past " + describe(calls[calls.size() - 1 - ago])
                               : concat("is past call #", label.sequence, " of that group");
  watch_.stop(concat("the ranks disagree: rank ", envelope.source, " is in ", describe(label),
                     ", rank ", rank(), " ", call));
}

// A transfer is through: the operation may start others.
void Communicator::through(const Moving& transfer) {
  ++activity_;
  Operation& operation = *transfer.operation;
  if (transfer.is_send) {
    operation.sent(*this, transfer.part, transfer.peer);
  } else {
    operation.last_source_ = transfer.peer;
    operation.last_announced_ = transfer.announced;
    operation.last_through_ = observer_clock();
    if (transfer.bytes > 0) {
      tally_.fetch_ended(transfer.peer, transfer.bytes, operation.last_through_);
    }
    operation.received(*this, transfer.part, transfer.peer);
  }
  --operation.under_way_;
}

// Nothing of the operation is under way: its next stage, or its end.
void Communicator::settle(const std::shared_ptr<Operation>& operation) {
  while (operation->under_way_ == 0 && !operation->finished()) {
    const uint64_t before = activity_;
    operation->advance(*this);
    if (operation->under_way_ == 0 && activity_ == before) {
      in_background_ -= operation->in_background_ ? 1 : 0;
      if (operation->notes_end_) [[unlikely]] {
        operation->finished_at_ = observer_clock();
      }
      operation->finished_.store(true, std::memory_order_release);
      ++activity_;
      if (operation->label().collective != Collective::kSend) {
        entries_.erase(key_of(*operation));
      }
    }
  }
}

void Communicator::take(Arrival arrival) {
  const Envelope& envelope = arrival.envelope;
  if (envelope.kind == Envelope::Kind::kControl) {
    hear(arrival);
    if (static_cast<Control>(envelope.control) == Control::kEnded) {
      check_ended();
    }
    return;
  }
  ++envelopes_arrived_;
  ++activity_;
  if (ended_) {
    watch_.stop(concat("rank ", rank(), " has finished, but rank ", envelope.source, " is in ",
                       describe(envelope.label), ", which it never called"));
  }
  const Label& label = envelope.label;
  const OperationKey key = key_of(label, envelope.source);
  const auto found = entries_.find(key);
  const bool started = found != entries_.end() && found->second.operation != nullptr;
  if (!started && !label.is_message()) {
    check_not_over(envelope);
  }
  Entry& entry = entries_[key];
  const MessageKey message{envelope.source, envelope.part};
  if (!started) {
    entry.arrived.emplace(message, std::move(arrival));
    return;
  }
  check_agreement(*entry.operation, arrival);
  const auto expected = entry.expected.find(message);
  if (expected == entry.expected.end()) {
    entry.arrived.emplace(message, std::move(arrival));
    return;
  }
  const Expected place = expected->second;
  entry.expected.erase(expected);
  const std::shared_ptr<Operation> operation = entry.operation;
  match(operation, arrival, place);
  settle(operation);
}

// Takes what has come and notices what is through.
void Communicator::progress() {
  while (!failure_) {
    std::optional<Arrival> arrival = transport_->next_arrival();
    if (!arrival) {
      break;
    }
    take(std::move(*arrival));
  }
  // What is told of its end may start transfers, so the ones that are through leave the list first.
  std::vector<Moving> done;
  std::erase_if(moving_, [&](Moving& moving) {
    const bool is_done = moving.transfer->done();
    if (is_done) {
      done.push_back(moving);
    }
    return is_done;
  });
  for (const Moving& moving : done) {
    through(moving);
  }
  for (const Moving& moving : done) {
    settle(moving.operation);
  }
  std::erase_if(control_transfers_, [](const auto& transfer) { return transfer->done(); });
}

// A rank that has ended sends nothing more: what is expected of it now never comes.
void Communicator::check_ended() {
  for (const auto& [key, entry] : entries_) {
    for (const auto& [message, expected] : entry.expected) {
      if (watch_.has_ended(message.first)) {
        watch_.stop(concat("rank ", rank(), " is in ", describe(entry.operation->label()),
                           ", but rank ", message.first, " has finished without it"));
      }
    }
  }
}

void Communicator::finish() {
  const Inside inside(*this);
  throw_if_failed();
  for (const auto& [key, entry] : entries_) {
    if (!entry.arrived.empty()) {
      const Envelope& envelope = entry.arrived.begin()->second.envelope;
      watch_.stop(concat("rank ", rank(), " has finished, but rank ", envelope.source, " is in ",
                         describe(envelope.label), ", which it never called"));
    }
  }
  ended_ = true;
  ++activity_;
  watch_.end();
  progress_until([&] { return watch_.job_has_ended(); },
                 [&](double idle) { watch_.idle_at_end(idle); });
}

void Communicator::announce_failure(const std::string& reason) {
  const Inside inside(*this);
  fail(reason);
}

void Communicator::fail(const std::string& reason) {
  if (!failure_) {
    failure_ = concat("rank ", rank(), " failed: ", reason);
    watch_.note_own_failure(reason);
    broadcast_control(Control::kFailed, reason);
  }
}

void Communicator::linger(double seconds, const std::function<bool()>& enough) {
  const auto start = Clock::now();
  while (!enough() && seconds_since(start) < seconds) {
    const Inside inside(*this);
    if (const std::optional<Arrival> arrival = transport_->next_arrival(); !arrival) {
      transport_->pause(seconds_since(start));
    } else if (arrival->envelope.kind == Envelope::Kind::kControl) {
      hear(*arrival);
    }
  }
}

bool Communicator::failed_elsewhere() const {
  const std::scoped_lock lock(mutex_);
  return watch_.failed_elsewhere();
}

bool Communicator::lost_a_host() const {
  const std::scoped_lock lock(mutex_);
  return watch_.lost_a_host();
}

bool Communicator::announce(const std::string& reason) {
  constexpr double kTakeIn = 0.05;  // seconds for what others have said before
  constexpr double kFirst = 0.01;   // the same for rank 0, of which the others then hear in time
  constexpr double kGrace = 0.3;    // in which ranks that fail alike hear of it
  {
    const Inside inside(*this);
    if (watch_.failed_elsewhere()) {
      return false;
    }
    failure_ = concat("rank ", rank(), " failed: ", reason);
    watch_.note_own_failure(reason);
  }
  const auto told = [this] {
    const std::scoped_lock lock(mutex_);
    return watch_.lower_rank_failed_alike();
  };
  linger(rank() == 0 ? kFirst : kTakeIn, told);
  if (told()) {
    return false;  // everybody has heard of it: thousands need not say it to each other
  }
  bool told_by_higher = false;
  {
    const Inside inside(*this);
    told_by_higher = watch_.told_elsewhere();  // those that hear of this rank now leave it to it
    broadcast_control(Control::kFailed, reason);
  }
  linger(rank() == 0 || told_by_higher ? 0 : kGrace, told);
  tells_user_ = !told_by_higher && !told();
  return tells_user_;
}

void Communicator::say_last_words() {
  const Inside inside(*this);
  if (tells_user_) {
    broadcast_control(Control::kTold, "");
  }
  watch_.say_last_words(/*to_all=*/tells_user_);
}

bool Communicator::all_others_are_done() const {
  const std::scoped_lock lock(mutex_);
  return watch_.all_others_have_ended();
}

bool Communicator::failed() const {
  const std::scoped_lock lock(mutex_);
  return failure_.has_value();
}

void Communicator::hear(const Arrival& arrival) {
  watch_.hear(static_cast<Control>(arrival.envelope.control), arrival.envelope.source,
              std::string(reinterpret_cast<const char*>(arrival.inline_data.data()),
                          arrival.inline_data.size()));
}

void Communicator::throw_if_failed() const {
  if (failure_) {
    throw CommError(*failure_);
  }
}

void Communicator::send_control(int destination, Control control, const std::string& text) {
  Envelope envelope;
  envelope.kind = Envelope::Kind::kControl;
  envelope.control = static_cast<uint8_t>(control);
  envelope.source = rank();
  envelope.bytes = std::min(static_cast<int64_t>(text.size()), Envelope::kInlineBytes);
  std::shared_ptr<Transfer> transfer = transport_->send(destination, envelope, text.data());
  if (transfer != nullptr) {
    control_transfers_.push_back(std::move(transfer));
  }
}

void Communicator::broadcast_control(Control control, const std::string& text) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != this->rank()) {
      send_control(rank, control, text);
    }
  }
}

}  // namespace tapestry
