// How ranks treat each other.
#pragma once

namespace tapestry {

/// What a group does when ranks do not come.
struct CommunicationOptions {
  /// How long a rank that hears nothing waits for the others of a collective. Ranks that all wait
  /// for each other are found sooner, whatever the value.
  double timeout_seconds = 600;
};

}  // namespace tapestry
