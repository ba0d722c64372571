// What a trainer parameter is on the wire: its own dtype, or what `wire_dtype` says it is cast to before anything is
// compared (kernels/diff.hpp has the rules of rounding). Snapshots, slots, pieces, patches and digests know nothing but
// the wire dtype.
#pragma once

#include "deltawire/dtype.hpp"
#include "result.hpp"

#include <optional>
#include <string_view>

namespace deltawire::layout {

/// `wire_dtype = "keep"`, or a dtype.
struct WireDType {
  std::optional<DType> cast_to; ///< nothing: every parameter keeps its dtype

  friend bool operator==(const WireDType&, const WireDType&) = default;
};

/// Of a topology-file text; nothing where it is neither "keep" nor a dtype that parameters may be cast to ("bfloat16",
/// "float16", "float32").
[[nodiscard]] std::optional<WireDType> wire_dtype_from_name(std::string_view name) noexcept;

/// "keep", "bfloat16", ...
[[nodiscard]] std::string_view to_string(WireDType wire) noexcept;

/// Which elements a rule means: those of one kind are cast by `update.wire_dtype`, the others keep theirs (integers,
/// bool, fp8), and a placement that asks for their cast is an error.
enum class AskedBy { update, placement };

/// What elements of `held` are on the wire. Fails, naming both dtypes, where the cast does not exist.
[[nodiscard]] Result<DType> wire_dtype_of(DType held, WireDType wire, AskedBy asked_by);

/// Whether a rank whose memory has `held` can send `wire`: the same, or cast.
[[nodiscard]] bool casts_to(DType held, DType wire) noexcept;

} // namespace deltawire::layout
