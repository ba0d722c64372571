// Reads pieces from FORMAT.md alone, one bit and one element at a time: the oracle of the codec tests. It shares
// nothing with the code under test, and throws where it meets what FORMAT.md does not allow.
#pragma once

#include "layout/plan.hpp"

#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <vector>

namespace deltawire::test {

class ReferencePieces {
public:
  /// Element -> bits, of all pieces; `base` gives the bits that an element had.
  template <class Base>
  static std::map<std::uint64_t, std::uint64_t> read(std::span<const std::byte> bytes, const layout::Block& block,
                                                     Base&& base) {
    ReferencePieces reader(bytes, block);
    while (reader.at_ < bytes.size())
      reader.read_piece(base);
    return std::move(reader.found_);
  }

private:
  ReferencePieces(std::span<const std::byte> bytes, const layout::Block& block)
    : bytes_(bytes), size_(size_of(block.dtype)), block_(block) {
    for (const layout::Index extent : block.extents)
      elements_ *= static_cast<std::uint64_t>(extent);
    switch (block.dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      floating_ = true;
      break;
    default:
      break;
    }
  }

  static void must(bool condition) {
    if (!condition)
      throw std::runtime_error("not what FORMAT.md says");
  }

  unsigned byte() {
    must(at_ < bytes_.size());
    return std::to_integer<unsigned>(bytes_[at_++]);
  }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      value |= std::uint64_t{byte()} << (8 * i);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const unsigned group = byte();
      value |= std::uint64_t{group & 127} << shift;
      if (group < 128)
        return value;
    }
  }
  /// Bits begin at a byte and end with align().
  bool bit() {
    must(at_ < bytes_.size());
    const bool set = (std::to_integer<unsigned>(bytes_[at_]) >> bit_ & 1) != 0;
    if (++bit_ == 8) {
      bit_ = 0;
      ++at_;
    }
    return set;
  }
  std::uint64_t bits(unsigned count) {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < count; ++i)
      value |= std::uint64_t{bit()} << i;
    return value;
  }
  void align() {
    while (bit_ != 0)
      must(!bit());
  }

  /// Of a Rice code of `count` gaps among `span` places.
  std::uint64_t parameter(std::size_t count, std::uint64_t span) {
    if (bit())
      return bits(4);
    const std::uint64_t scaled = 31 * (2 * span - count) / (64 * count);
    std::uint64_t expected = 0;
    while (scaled >> (expected + 1) != 0)
      ++expected;
    return expected;
  }

  std::vector<std::uint64_t> rice(std::uint64_t parameter, std::size_t count) {
    must(parameter <= 11);
    std::vector<std::uint64_t> gaps(count);
    for (std::uint64_t& gap : gaps)
      while (!bit())
        gap += std::uint64_t{1} << parameter;
    for (std::uint64_t& gap : gaps)
      gap += bits(static_cast<unsigned>(parameter));
    std::uint64_t next = 0;
    for (std::uint64_t& gap : gaps) {
      gap += next;
      next = gap + 1;
    }
    return gaps;
  }

  std::vector<std::uint64_t> positions(unsigned codec, std::size_t count, std::uint64_t span) {
    std::vector<std::uint64_t> result;
    std::uint64_t next = 0;
    switch (codec) {
    case 0:
      while (result.size() < count) {
        const unsigned gap = byte();
        next += gap;
        if (gap < 255)
          result.push_back(next++);
      }
      break;
    case 1:
      while (result.size() < count) {
        next += number(2);
        result.push_back(next++);
      }
      break;
    case 2:
      must(count <= span);
      result = rice(parameter(count, span), count);
      break;
    case 3:
      for (std::uint64_t i = 0; i < span; ++i)
        if (bit())
          result.push_back(i);
      align();
      break;
    case 4:
      while (result.size() < count) {
        next += varint();
        for (std::uint64_t length = varint() + 1; length > 0; --length)
          result.push_back(next++);
      }
      break;
    case 5:
      while (next < span)
        result.push_back(next++);
      break;
    default:
      must(false);
    }
    must(result.size() == count && result.back() < span);
    return result;
  }

  std::uint64_t mask() const { return size_ == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * size_)) - 1; }
  std::uint64_t sign() const { return std::uint64_t{1} << (8 * size_ - 1); }
  std::uint64_t order(std::uint64_t value) const {
    if (!floating_)
      return value;
    return (value & sign()) != 0 ? ~value & mask() : value | sign();
  }
  std::uint64_t value_at(std::uint64_t place) const {
    if (!floating_)
      return place;
    return (place & sign()) != 0 ? place & ~sign() : ~place & mask();
  }

  template <class Base>
  void ulp(std::uint64_t first, const std::vector<std::uint64_t>& at, Base&& base) {
    const std::size_t count = at.size();
    std::vector<bool> negative(count);
    for (std::size_t i = 0; i < count; ++i)
      negative[i] = bit();
    unsigned width = 0;
    while ((count >> width) != 0)
      ++width;
    const auto exceptions = static_cast<std::size_t>(bits(width));
    must(exceptions <= count);
    std::vector<std::uint64_t> which;
    if (exceptions == count) {
      for (std::size_t i = 0; i < count; ++i)
        which.push_back(i);
    } else if (exceptions > 0) {
      const std::uint64_t k = parameter(exceptions, count);
      if (k == 15) {
        for (std::size_t i = 0; i < count; ++i)
          if (bit())
            which.push_back(i);
      } else {
        which = rice(k, exceptions);
      }
    }
    must(which.size() == exceptions && (which.empty() || which.back() < count));
    std::vector<std::uint64_t> magnitudes(count, 1);
    for (const std::uint64_t index : which)
      magnitudes[index] = bits(4) + 2;
    align();
    for (const std::uint64_t index : which)
      if (magnitudes[index] == 17)
        magnitudes[index] = 17 + byte();
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t value = 0;
      if (magnitudes[i] == 272) {
        value = number(size_);
      } else {
        const std::uint64_t place = order(base(first + at[i]));
        value = value_at((negative[i] ? place - magnitudes[i] : place + magnitudes[i]) & mask());
      }
      must(found_.emplace(first + at[i], value).second);
    }
  }

  template <class Base>
  void read_piece(Base&& base) {
    const std::uint64_t tag = varint();
    must(tag >> 4 == block_.id);
    const unsigned kind = tag & 3;
    std::uint64_t first = 0;
    std::uint64_t end = elements_;
    if ((tag >> 2 & 3) == 1) {
      first = varint() * 4096;
      end = std::min(elements_, first + varint() * 4096);
    } else if ((tag >> 2 & 3) == 2) {
      first = varint();
      end = first + varint();
    } else {
      must((tag >> 2 & 3) == 0);
    }
    must(first < end && end <= elements_);
    const std::uint64_t body = varint();
    const std::size_t body_end = at_ + static_cast<std::size_t>(body);
    must(body_end <= bytes_.size());
    if (kind == 1) {
      for (std::uint64_t element = first; element < end; ++element)
        must(found_.emplace(element, number(size_)).second);
      must(at_ == body_end);
      return;
    }
    must(kind == 0 || kind == 2);
    struct Part {
      std::uint64_t first;
      std::uint64_t span;
      std::uint64_t changes;
      unsigned codec;
      bool ulp;
      std::uint64_t length;
      std::vector<std::uint64_t> positions;
    };
    std::vector<Part> parts;
    for (std::uint64_t part = first; part < end; part = (part / 4096 + 1) * 4096) {
      const std::uint64_t head = varint();
      const std::uint64_t span = std::min(end, (part / 4096 + 1) * 4096) - part;
      if (head > 4096) {
        must(head >= 4112 && head <= 69647);
        const auto codec = static_cast<unsigned>(head & 7);
        const bool lane = (head & 8) != 0;
        must(codec != 2 || lane != (kind == 2));
        parts.push_back({part, span, (head - 4096) / 16, codec, lane, 0, {}});
      } else if (head != 0) {
        parts.push_back({part, span, head, 2, kind == 2, 0, {}});
      }
    }
    must(!parts.empty());
    std::size_t changes = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      changes += static_cast<std::size_t>(parts[i].changes);
      if (i + 1 < parts.size())
        parts[i].length = varint();
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      const std::size_t record_end = i + 1 < parts.size() ? at_ + static_cast<std::size_t>(part.length)
                                     : kind == 0          ? body_end - changes * size_
                                                          : body_end;
      part.positions = positions(part.codec, static_cast<std::size_t>(part.changes), part.span);
      if (part.ulp) {
        must(kind == 2);
        ulp(part.first, part.positions, base);
      } else {
        align();
        if (kind == 2)
          for (const std::uint64_t position : part.positions)
            must(found_.emplace(part.first + position, number(size_)).second);
      }
      must(at_ == record_end);
    }
    if (kind == 0)
      for (const Part& part : parts)
        for (const std::uint64_t position : part.positions)
          must(found_.emplace(part.first + position, number(size_)).second);
    must(at_ == body_end);
  }

  std::span<const std::byte> bytes_;
  std::size_t size_;
  const layout::Block& block_;
  std::uint64_t elements_ = 1;
  bool floating_ = false;
  std::size_t at_ = 0;
  unsigned bit_ = 0;
  std::map<std::uint64_t, std::uint64_t> found_;
};

} // namespace deltawire::test
