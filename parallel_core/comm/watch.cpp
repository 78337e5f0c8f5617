#include "parallel_core/comm/watch.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/communicator.h"

namespace tapestry {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kStuckAfter = 0.3;       // seconds without news
constexpr double kAskAfter = 0.1;         // the same, before those waited for are asked
constexpr double kLongestSilence = 60.0;  // between two reports of one rank that is stuck
constexpr double kGrace = 0.5;            // seconds in which ranks that wait answer
constexpr int kMaxLines = 16;             // of a report
constexpr size_t kMaxNamed = 3;           // ranks of one line that are explained
constexpr int kCoordinator = 0;

std::string clause(int rank, const std::vector<RankState>& states, const RankHosts& hosts) {
  const RankState& state = states[static_cast<size_t>(rank)];
  return concat(hosts.name_of(rank), ", which ",
                state.doing.empty() ? "does not answer (it is in no collective)" : state.doing);
}

std::string describe_rank(int rank, const std::vector<RankState>& states, const RankHosts& hosts) {
  const RankState& state = states[static_cast<size_t>(rank)];
  std::string line = concat(hosts.name_of(rank), " ", state.doing);
  const size_t named = std::min(kMaxNamed, state.missing.size());
  for (size_t i = 0; i < named; ++i) {
    line += (i == 0 ? " for " : "; for ") + clause(state.missing[i], states, hosts);
  }
  if (state.missing.size() > named) {
    line += concat("; and for ", state.missing.size() - named, " more ranks");
  }
  return line;
}

std::string describe_ranks(const std::vector<RankState>& states, const RankHosts& hosts) {
  std::string text;
  int lines = 0;
  int left_out = 0;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    if (states[rank].doing.empty()) {
      continue;  // named by those that wait for it
    }
    if (lines == kMaxLines) {
      ++left_out;
      continue;
    }
    text += "\n  " + describe_rank(static_cast<int>(rank), states, hosts);
    ++lines;
  }
  if (left_out > 0) {
    text += concat("\n  and ", left_out, " more ranks");
  }
  return text;
}

// What is to be said if no rank of a host answers.
std::string silent_hosts(const std::vector<RankState>& states, const RankHosts& hosts, int self) {
  std::vector<bool> silent;
  silent.reserve(states.size());
  for (const RankState& state : states) {
    silent.push_back(state.doing.empty());
  }
  const std::string whole = hosts.whole_hosts(silent);
  return whole.empty() ? ""
                       : concat("; cannot reach ", whole,
                                ": no rank there answers, so the host has failed, or the network "
                                "between it and ",
                                hosts.host_of(self), ", or all its ranks hang");
}

}  // namespace

std::string RankState::serialize() const {
  std::ostringstream out;
  out << stuck << ' ' << activity << ' ' << sent << ' ' << arrived << ' ' << missing.size();
  for (const int rank : missing) {
    out << ' ' << rank;
  }
  out << ' ' << doing;
  return out.str();
}

RankState RankState::parse(const std::string& text) {
  RankState state;
  std::istringstream in(text);
  size_t count = 0;
  in >> state.stuck >> state.activity >> state.sent >> state.arrived >> count;
  for (size_t i = 0; i < count && in; ++i) {
    state.missing.push_back(0);
    in >> state.missing.back();
  }
  in.ignore();
  std::getline(in, state.doing);
  return state;
}

Watch::Watch(Communicator& communicator)
    : communicator_(communicator),
      ended_(static_cast<size_t>(communicator.size()), false),
      tree_{communicator.size(), communicator.rank()},
      next_report_(kStuckAfter),
      failed_alike_(ended_.size(), false),
      told_(ended_.size(), false) {}

void Watch::send_to_children(Control control) {
  for (const int child : tree_.children()) {
    communicator_.send_control(child, control, "");
  }
}

void Watch::end() {
  for (const int rank : asked_by_) {
    communicator_.send_control(rank, Control::kEnded, "");
  }
  asked_by_.clear();
  count_end();
}

bool Watch::job_has_ended() {
  count_end();
  return job_has_ended_;
}

void Watch::count_end() {
  if (!communicator_.ended_ || counted_ || children_ended_ < tree_.children().size()) {
    return;
  }
  const Count all = {below_.sent + communicator_.envelopes_sent_,
                     below_.arrived + communicator_.envelopes_arrived_};
  if (tree_.rank > 0) {
    counted_ = true;
    communicator_.send_control(tree_.parent(), Control::kTreeEnded,
                               concat(all.sent, ' ', all.arrived));
  } else if (all.sent == all.arrived) {
    counted_ = job_has_ended_ = true;
    send_to_children(Control::kAllEnded);
  } else {
    children_ended_ = 0;
    below_ = {};
    send_to_children(Control::kCountAgain);
  }
}

// Whoever waits for a rank that has ended, and has nothing on its way to it, would wait for ever.
void Watch::ask_for_ends() {
  if (!has_asked_ && communicator_.in_call_ != nullptr) {
    has_asked_ = true;
    for (const int rank : own_state().missing) {
      communicator_.send_control(rank, Control::kAskEnd, "");
    }
  }
}

void Watch::say_last_words(bool to_all) {
  said_last_words_ = true;
  if (to_all) {
    communicator_.broadcast_control(Control::kEnded, "");
    return;
  }
  for (const int rank : failing_) {
    communicator_.send_control(rank, Control::kEnded, "");
  }
}

RankState Watch::own_state() const {
  RankState state;
  const Communicator& c = communicator_;
  state.activity = c.activity_;
  state.sent = c.envelopes_sent_;
  state.arrived = c.envelopes_arrived_;
  if (c.ended_) {
    state.doing = "has finished";
    state.stuck = true;
    return state;
  }
  if (c.in_call_ == nullptr) {
    state.doing = c.describe_background();
    return state;
  }
  state.doing = "waits in " + c.describe(c.in_call_->label());
  state.stuck = true;
  for (const Communicator::Moving& moving : c.moving_) {
    if (!moving.is_send) {
      state.stuck = false;
    } else if (moving.operation.get() == c.in_call_) {
      state.missing.push_back(moving.peer);
    }
  }
  const auto entry = c.entries_.find(Communicator::key_of(*c.in_call_));
  if (entry != c.entries_.end()) {
    for (const auto& [key, expected] : entry->second.expected) {
      state.missing.push_back(key.first);
    }
  }
  std::sort(state.missing.begin(), state.missing.end());
  state.missing.erase(std::unique(state.missing.begin(), state.missing.end()), state.missing.end());
  constexpr size_t kMostMissing = 64;  // what fits into one control message
  state.missing.resize(std::min(state.missing.size(), kMostMissing));
  return state;
}

void Watch::idle(double seconds) {
  report_stuck(seconds);
  if (seconds >= communicator_.options_.timeout_seconds) {
    stop(concat(communicator_.options_.hosts->name_of(communicator_.rank()),
                " has heard nothing for ", communicator_.options_.timeout_seconds, " seconds"),
         Silence::kMeansFailure);
  }
}

void Watch::idle_at_end(double seconds) { report_stuck(seconds); }

void Watch::report_stuck(double idle_seconds) {
  if (idle_seconds >= kAskAfter) {
    ask_for_ends();
  } else {
    has_asked_ = false;
  }
  if (idle_seconds < kStuckAfter) {
    next_report_ = kStuckAfter;
    return;
  }
  if (idle_seconds >= next_report_) {
    next_report_ = idle_seconds + std::min(idle_seconds, kLongestSilence);
    const RankState state = own_state();
    if (state.stuck && communicator_.rank() != kCoordinator) {
      communicator_.send_control(kCoordinator, Control::kStuck, state.serialize());
    }
  }
  if (communicator_.rank() == kCoordinator) {
    look_for_deadlock();
  }
}

void Watch::look_for_deadlock() {
  const RankState own = own_state();
  if (!own.stuck || round_open_) {
    return;
  }
  stuck_[kCoordinator] = own;
  if (static_cast<int>(stuck_.size()) < communicator_.size()) {
    return;
  }
  ++round_;
  round_open_ = true;
  confirmed_.clear();
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank != kCoordinator) {
      communicator_.send_control(rank, Control::kConfirm, std::to_string(round_));
    }
  }
  judge_round();
}

void Watch::judge_round() {
  if (static_cast<int>(confirmed_.size()) + 1 < communicator_.size()) {
    return;
  }
  round_open_ = false;
  confirmed_[kCoordinator] = own_state();
  uint64_t sent = 0;
  uint64_t arrived = 0;
  bool unchanged = true;
  bool all_ended = true;
  std::vector<RankState> states;
  for (const auto& [rank, state] : confirmed_) {
    const bool same = state.stuck && state.activity == stuck_[rank].activity;
    unchanged = unchanged && same;
    if (!same) {
      stuck_.erase(rank);
    }
    all_ended = all_ended && state.missing.empty() && state.doing == "has finished";
    sent += state.sent;
    arrived += state.arrived;
    states.push_back(state);
  }
  if (unchanged && sent == arrived && !all_ended) {
    stop_with("deadlock: no rank can go on", states);
  }
}

// The first reason is the one that counts.
bool Watch::lower_rank_failed_alike() const {
  const auto lower = failed_alike_.begin() + communicator_.rank();
  return std::find(failed_alike_.begin(), lower, true) != lower;
}

bool Watch::told_elsewhere() const {
  for (size_t rank = 0; rank < told_.size(); ++rank) {
    if (failed_alike_[rank] && told_[rank]) {
      return true;
    }
  }
  return false;
}

void Watch::fail_elsewhere(const std::string& reason) {
  if (!communicator_.failure_) {
    communicator_.failure_ = reason;
    failed_elsewhere_ = true;
  }
}

void Watch::hear_count(const std::string& text) {
  std::istringstream in(text);
  Count count;
  in >> count.sent >> count.arrived;
  below_.sent += count.sent;
  below_.arrived += count.arrived;
  ++children_ended_;
}

void Watch::note_failing(int rank) {
  failing_.push_back(rank);
  if (said_last_words_) {
    communicator_.send_control(rank, Control::kEnded, "");
  }
}

void Watch::hear(Control control, int source, const std::string& text) {
  const auto answer = [&](Control kind, const std::string& content) {
    communicator_.send_control(source, kind, content);
  };
  switch (control) {
    case Control::kEnded:
      ended_count_ += has_ended(source) ? 0 : 1;
      ended_[static_cast<size_t>(source)] = true;
      break;
    case Control::kAskEnd:
      if (communicator_.ended_) {
        answer(Control::kEnded, "");
      } else if (std::find(asked_by_.begin(), asked_by_.end(), source) == asked_by_.end()) {
        asked_by_.push_back(source);
      }
      break;
    case Control::kTreeEnded:
      hear_count(text);
      count_end();
      break;
    case Control::kCountAgain:
      children_ended_ = 0;
      below_ = {};
      counted_ = false;
      send_to_children(control);
      count_end();
      break;
    case Control::kAllEnded:
      job_has_ended_ = true;
      ++communicator_.activity_;  // what the rank waits for
      send_to_children(control);
      break;
    case Control::kFailed:
      note_failing(source);
      if (communicator_.failure_ && text == own_reason_.substr(0, Envelope::kInlineBytes)) {
        failed_alike_[static_cast<size_t>(source)] = true;
      }
      fail_elsewhere(concat(communicator_.options_.hosts->name_of(source), " failed: ", text));
      break;
    case Control::kTold:
      told_[static_cast<size_t>(source)] = true;
      break;
    case Control::kStop:
      note_failing(source);
      fail_elsewhere(text);
      break;
    case Control::kStuck:
      stuck_[source] = RankState::parse(text);
      break;
    case Control::kConfirm:
      answer(Control::kConfirmed, text + " " + own_state().serialize());
      break;
    case Control::kConfirmed: {
      const size_t space = text.find(' ');
      if (round_open_ && text.substr(0, space) == std::to_string(round_)) {
        confirmed_[source] = RankState::parse(text.substr(space + 1));
        if (!asking_) {
          judge_round();
        }
      }
      break;
    }
    case Control::kQuery:
      answer(Control::kState, own_state().serialize());
      break;
    case Control::kState:
      if (asking_) {
        answers_[static_cast<size_t>(source)] = RankState::parse(text);
      }
      break;
    case Control::kWaits:
      communicator_.stragglers_.hear(source, RankWaits::parse(text));
      break;
  }
}

void Watch::stop(const std::string& finding, Silence silence) {
  asking_ = true;
  answers_.assign(static_cast<size_t>(communicator_.size()), {});
  answers_[static_cast<size_t>(communicator_.rank())] = own_state();
  communicator_.broadcast_control(Control::kQuery, "");
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto all_answered = [&] {
    return std::none_of(answers_.begin(), answers_.end(),
                        [](const RankState& state) { return state.doing.empty(); });
  };
  while (!all_answered() && seconds() < kGrace) {
    const std::optional<Arrival> arrival = communicator_.transport_->next_arrival();
    if (!arrival) {
      communicator_.transport_->pause(seconds());
    } else if (arrival->envelope.kind == Envelope::Kind::kControl) {
      communicator_.hear(*arrival);
      communicator_.throw_if_failed();  // another rank was first
    }
  }
  std::string lost;
  if (silence == Silence::kMeansFailure) {
    lost = silent_hosts(answers_, *communicator_.options_.hosts, communicator_.rank());
    lost_a_host_ = !lost.empty();
  }
  stop_with(finding + lost, answers_);
}

void Watch::stop_with(const std::string& finding, const std::vector<RankState>& states) {
  communicator_.failure_ = finding + describe_ranks(states, *communicator_.options_.hosts);
  communicator_.broadcast_control(Control::kStop, *communicator_.failure_);
  throw CommError(*communicator_.failure_);
}

}  // namespace tapestry
