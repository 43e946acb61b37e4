// The fused attention over random heads of many shapes, in memory that ends exactly where the arrays do. Built by
// test_sanitized.py with sanitizers, which end the program at the first error.
#include "attention.cpp"

#include "sanitized_threads.h"

#include <cstdio>
#include <vector>

static uint64_t state = 88172645463325252ull;
static double uniform() {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<double>(state >> 11) / 9007199254740992.0;
}

static std::vector<float> drawn(int64_t count, int kind, double sharpness) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) {
    v = static_cast<float>((uniform() * 2 - 1) * sharpness);
    if (kind == 1) v = static_cast<float>(static_cast<int>(v * 3));  // ties
    if (kind == 2 && uniform() < 0.0005) v = uniform() < 0.5 ? std::numeric_limits<float>::infinity() : std::nanf("");
    if (kind == 3 && uniform() < 0.01) v *= 1e25f;
  }
  return x;
}

int main() {
  long calls = 0;
  for (int64_t d : {1, 5, 64, 80, 128})
    for (int64_t e : {1, 16, 33, 64})
      for (int64_t m : {0, 1, 31, 64, 300, 1500})
        for (int64_t n : {1, 13, 60}) {
          if (m == 1500 && (n == 13 || e % 16)) continue;
          const int kind = static_cast<int>(uniform() * 4);
          const int64_t heads = 4, groups = 2;
          const double sharpness[] = {0.01, 1, 5}, scale = 1 / std::sqrt(static_cast<double>(d));
          std::vector<float> q = drawn(heads * n * d, kind, sharpness[calls % 3]), k = drawn(groups * m * d, kind, 1);
          std::vector<float> v = drawn(groups * m * e, kind, 1), g = drawn(heads * n * e, 0, 1);
          std::vector<float> out(g.size()), dq(q.size()), dk(k.size()), dv(v.size());
          std::vector<int64_t> pointers(static_cast<size_t>(heads * n + 2)), lengths{m, m / 2, 0, m};
          std::vector<int64_t> spans;  // [heads, n, 2]
          for (int64_t i = 0; i < heads * n; i++) {
            const int64_t a = static_cast<int64_t>(uniform() * static_cast<double>(m + 1)), b = static_cast<int64_t>(uniform() * static_cast<double>(m + 1));
            spans.insert(spans.end(), {a < b ? a : b, i % 7 ? (a < b ? b : a) : a});
          }
          std::vector<float> bias = drawn(heads * n * m, kind, 1), scores(bias.size());
          std::vector<uint8_t> kept(bias.size());
          for (uint8_t& x : kept) x = uniform() < 0.5;
          std::vector<double> total(bias.size());
          std::vector<float> factors(bias.size());
          std::vector<int32_t> room(static_cast<size_t>(m + 16));
          const std::vector<int64_t> at{0, n * m, 2 * n * m, 3 * n * m};
          std::vector<double> alphas{1.3, 2, 1.05, 1.5}, slope(static_cast<size_t>(heads * n));
          for (int power = 0; power <= 4; power++)
            for (int threads = 1; threads <= 3; threads += 2) {
              void* held;
              float* weights = nullptr;
              const int64_t* padding = calls % 2 ? lengths.data() : nullptr;
              sa::Shape s{heads, groups, n, m, d, e, scale, calls % 4 < 2, padding};
              s.spans = calls % 3 ? nullptr : spans.data();
              s.spans_of_heads = calls % 2;
              s.pinned = m > 0 && calls % 5 < 2;
              s.alpha = power == 1 ? 2 : power == 2 ? 1.5 : power == 3 ? 3.5 : 1.2;
              s.alphas = power ? nullptr : alphas.data();
              s.lam = power == 1 && calls % 3 ? (calls % 2 ? 0.1 : 2) : 0;
              s.dropout = calls % 7 < 3 ? 0.4 : 0;
              s.seed = calls;
              attention_dropout(s.dropout, s.seed, heads * n, m, factors.data());
              if (calls % 3 == 1) {
                s.bias = bias.data();
                s.bias_at = s.kept_at = at.data();
                s.bias_row = s.kept_row = m;
                if (calls % 2) s.kept = kept.data();
              }
              const bool kept_weights = threads == 1 || s.lam > 0;
              attention_forward(&s, q.data(), k.data(), v.data(), out.data(), pointers.data(), &held,
                                kept_weights ? &weights : nullptr, threads);
              attention_backward(&s, q.data(), k.data(), v.data(), g.data(), pointers.data(), held, weights, dq.data(),
                                 dk.data(), dv.data(), calls % 2 ? slope.data() : nullptr, calls % 3 ? scores.data() : nullptr, threads);
              if (calls % 3) attention_scatter(&s, pointers.data(), held, scores.data(), total.data(), at.data(), m, 1, room.data());
              std::vector<int32_t> columns(static_cast<size_t>(pointers[heads * n] + 16));
              attention_columns(pointers.data(), held, heads * n, m, columns.data());
              attention_free(held);
              attention_free(weights);
              if (n == 1 && s.lam == 0 && (power == 1 || power == 2)) {
                int64_t panel[3];
                attention_panel_sizes(d, panel);
                const int64_t room = panel[0] ? m / panel[2] : 0;
                std::vector<uint8_t> value(static_cast<size_t>(groups * room * panel[0]));
                std::vector<sa::Panel> about(static_cast<size_t>(groups * room));
                std::vector<float> center(static_cast<size_t>(groups * panel[1])), spread(center.size()), length(2);
                const std::vector<float> per_head = drawn(2, kind, 1), bias = drawn(m, kind, 1);
                const float* forms = calls % 3 ? per_head.data() : nullptr;
                Step step{{k.data(), v.data(), m * d, m * e, value.data(), about.data(), center.data(), spread.data(),
                           length.data(), room, 0}, heads, groups, m, d, e, scale, padding, power, 0, forms, forms, forms, 2,
                          calls % 5 ? m / 2 + 1 : m, 1.0};
                for (int element = 0; element < 3; element++) {  // the same bytes, read as other numbers, half as many
                  const bool half = element > 0;
                  step.element = element;
                  step.m = half ? m / 2 : m;
                  step.cache.stride_k = step.m * d;
                  step.cache.stride_v = step.m * e;
                  step.cache.panels = 0;
                  const int64_t whole = panel[0] ? step.m / panel[2] : 0;
                  for (const int64_t last : {whole / 2, whole}) {
                    const int64_t first = step.cache.panels;
                    step.cache.panels = last;
                    if (last > first) attention_screen(&step, first, threads);
                    attention_decode(&step, q.data(), out.data(), calls % 2 ? bias.data() : nullptr, 0, threads);
                  }
                }
              }
              calls++;
            }
        }
  std::printf("%ld calls\n", calls);
}
