// Codes and codebooks as bytes and back, and to and from devices.
#include <algorithm>

#include "methods/key_codes.h"

namespace reprise {

void KeyCodes::save(StateWriter& out) const {
  constexpr size_t kBlock = kernels::kCodeBlock;
  for (const Layer& layer : layers_) {
    out.value(layer.trained_end);
    if (layer.trained_end == 0) continue;
    out.value(layer.coded);
    out.value(static_cast<uint32_t>(layer.metrics->size()));
    for (const std::vector<float>& metric : *layer.metrics) {
      out.value(static_cast<uint32_t>(metric.size()));
      out.array(metric.data(), metric.size());
    }
    for (const Head& head : layer.heads) {
      out.array(head.book->centroids.data(), head.book->centroids.size());
      const auto coded = static_cast<size_t>(layer.coded);
      for (size_t first = 0; first < coded; first += kBlock) {
        const CodeBlocks::Place place = head.codes.place(first);
        for (size_t byte = 0; byte < key_bytes(); ++byte) {
          out.array(place.codes + byte * place.stride, std::min(kBlock, coded - first));
        }
      }
    }
  }
}

void KeyCodes::load(StateReader& in, int32_t length) {
  for (Layer& layer : layers_) {
    layer = {};
    const auto trained_end = in.value<int32_t>();
    if (!in.ok() || trained_end == 0) continue;
    layer.coded = in.value<int32_t>();
    in.require(trained_end > 0 && trained_end <= length && layer.coded >= 0 &&
               layer.coded <= length);
    const size_t metrics = in.value<uint32_t>(), all = config_->n_kv_head * parts_.size();
    in.require(metrics == 0 || metrics == all);
    PartMetrics read(in.ok() ? metrics : 0);
    for (size_t i = 0; i < read.size(); ++i) {
      const size_t dims = 2 * parts_[i % parts_.size()].size(), size = in.value<uint32_t>();
      in.require(size == 0 || size == dims * dims);
      in.array(read[i], size);
    }
    layer.metrics = std::make_shared<PartMetrics>(std::move(read));
    if (!in.ok()) return;
    layer.heads.assign(config_->n_kv_head, {nullptr, CodeBlocks(key_bytes())});
    for (size_t head = 0; head < layer.heads.size(); ++head) {
      load_head(in, layer, head);
      if (!in.ok()) return;
    }
    layer.trained_end = trained_end;
  }
}

void KeyCodes::prepare(const Layer& layer, size_t index) const {
  for (size_t part = 0; part < parts_.size(); ++part) {
    prepare(*layer.heads[index].book, points(nullptr, {}, layer, index, part), part);
  }
}

void KeyCodes::adopt(uint32_t index, int32_t trained_end, int32_t coded, PartMetrics metrics,
                     std::span<const float> centroids) {
  const size_t book = clusters_ * config_->head_dim;
  Layer& layer = layers_[index];
  layer = {};
  layer.trained_end = trained_end;
  layer.coded = coded;
  layer.metrics = std::make_shared<PartMetrics>(std::move(metrics));
  layer.heads.assign(config_->n_kv_head, {nullptr, CodeBlocks(key_bytes())});
  for (size_t head = 0; head < layer.heads.size(); ++head) {
    Head& own = layer.heads[head];
    own.book = make_book();
    std::copy_n(&centroids[head * book], book, own.book->centroids.begin());
    prepare(layer, head);
    own.codes.own(0, static_cast<size_t>(coded));
  }
}

void KeyCodes::load_head(StateReader& in, Layer& layer, size_t index) const {
  constexpr size_t kBlock = kernels::kCodeBlock;
  Head& head = layer.heads[index];
  head.book = make_book();
  in.array(head.book->centroids, clusters_ * config_->head_dim);
  std::vector<uint8_t> codes;
  for (size_t first = 0; in.ok() && first < static_cast<size_t>(layer.coded); first += kBlock) {
    const size_t keys = std::min(kBlock, static_cast<size_t>(layer.coded) - first);
    in.array(codes, key_bytes() * keys);
    if (!in.ok()) return;
    head.codes.own(first, first + keys);
    const std::span<uint8_t> block = head.codes.block(first);
    for (size_t byte = 0; byte < key_bytes(); ++byte) {
      std::copy_n(&codes[byte * keys], keys, &block[byte * kBlock]);
    }
  }
  if (!in.ok()) return;
  head.codes.join(static_cast<size_t>(layer.coded));
  prepare(layer, index);
}

}  // namespace reprise
