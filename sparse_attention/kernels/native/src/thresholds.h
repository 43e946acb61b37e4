// Root finders: the threshold tau at which the mapped candidates sum to one.
//
// All work on the candidates b in (-1, 0] of candidates.h and evaluate sums over d = (b - tau)_+ only. Those sums are
// close to 1 near the root, so their rounding does not grow with the length of the row. The result comes in two parts,
// tau = hi + lo: b - hi is exact where it matters, and lo carries what a single T would round away (with 32,000
// entries in the support that would be 1e-3 of the total probability).
//
// Convexity makes Newton monotone: started left of the root it climbs towards it and never oversteps.
#pragma once
#include "candidates.h"
#include "power.h"

namespace sa {

template <class T>
struct Threshold {
  T hi, lo;
};

template <class T>
inline Vec<T> above(Vec<T> b, Threshold<T> tau) {
  return positive_part((b - Vec<T>::all(tau.hi)) - Vec<T>::all(tau.lo));
}

// Adds term(d) vector by vector into up to three float64 sums, d = (b - tau)_+ over the candidates.
template <class T, class Term>
inline void sum_over(const Candidates<T>& k, T tau, double out[3], Term term) {
  using V = Vec<T>;
  const V t = V::all(tau);
  out[0] = out[1] = out[2] = 0;
  for (int64_t i = 0; i < k.count;) {
    V s0 = V::all(0), s1 = s0, s2 = s0;
    for (int64_t end = i + block < k.count ? i + block : k.count; i < end; i += V::W)
      term(positive_part(V::load(k.b + i) - t), s0, s1, s2);
    out[0] += sum(s0);
    out[1] += sum(s1);
    out[2] += sum(s2);
  }
}

template <class T>
inline double small_step(double tau) {
  // Newton squares the error, so the step after one of this relative size is below the rounding.
  return (sizeof(T) == 4 ? 3e-5 : 1e-10) * -tau;
}

// sum (b - tau)_+ = 1. Newton on a piecewise linear function; exact as soon as the support stops changing (Michelot).
// Every support it passes through costs at least a factor of the support's size in distance, so there are few.
template <class T>
inline Threshold<T> solve_linear(Candidates<T>& k, double total) {
  using V = Vec<T>;
  const V one = V::all(1), zero = V::all(0);
  double tau = (k.sum - total) / static_cast<double>(k.count);
  double support = static_cast<double>(k.count);  // the one that tau was computed from
  if (tau < -total) {                             // the largest candidate alone says more
    tau = -total;
    support = -1;
  }
  for (int pass = 0; pass < 60; pass++) {
    T hi = static_cast<T>(tau);
    double s[3];
    sum_over(k, hi, s, [&](V d, V& f, V& size, V&) {
      f = f + d;
      size = size + select_or_zero(greater(d, zero), one);
    });
    double step = s[1] > 0 ? (s[0] - total) / s[1] : -1e-7;
    if (s[1] == support || std::fabs(step) < std::numeric_limits<T>::epsilon() * 0.25) return {hi, static_cast<T>(step)};
    support = s[1];
    tau = static_cast<double>(hi) + step;
  }
  return {static_cast<T>(tau), 0};
}

// sum (b - tau)_+^2 = 1. Newton on the Euclidean norm of d (convex), then the exact root on the support reached.
template <class T>
inline Threshold<T> solve_quadratic(Candidates<T>& k) {
  using V = Vec<T>;
  const V one = V::all(1), zero = V::all(0);
  double c = static_cast<double>(k.count);
  double tau = k.sum / c - 1 / std::sqrt(c);  // Jensen: all candidates at their mean would need this threshold
  if (tau < -1) tau = -1;
  for (int pass = 0;; pass++) {
    T hi = static_cast<T>(tau);
    double s[3];
    sum_over(k, hi, s, [&](V d, V& f, V& h, V& size) {
      f = fma(d, d, f);
      h = h + d;
      size = size + select_or_zero(greater(d, zero), one);
    });
    double step = (s[0] - std::sqrt(s[0])) / s[1];
    if (std::fabs(step) < 1e-5 * -tau || pass == 40) {
      // sum (d - delta)^2 = 1 over a fixed support: a quadratic, solved without cancellation.
      double discriminant = s[1] * s[1] - s[2] * (s[0] - 1);
      double exact = discriminant > 0 ? (s[0] - 1) / (s[1] + std::sqrt(discriminant)) : step;
      return {hi, static_cast<T>(exact)};
    }
    tau = static_cast<double>(hi) + step;
  }
}

// d^r and its derivatives, up to factors: f, h and g add d^r, d^(r-1) and d^(r-2). The last is of use from r = 2 on (`curved`;
// it has a pole below). `lowest` is the power r - 2 in those lanes, r - 1 in the others. `small` is the step, relative to tau,
// after which the next one would be below the rounding: with g they cube the error, but one of size s lets an entry that
// leaves the support be wrong by s^r.
template <class T, class Power>
struct Powers {
  using V = Vec<T>;
  V r;
  typename V::Mask curved = mask_or(greater(r, V::all(2)), equal(r, V::all(2)));
  V small = select(greater(V::all(sizeof(T) == 4 ? 2 : 1000), r), V::all(static_cast<T>(small_step<T>(-1))),
                   select(greater(V::all(3), r), V::all(T(1e-4)), V::all(T(1e-3))));
  Power lowest;
  explicit Powers(V power) : r(power), lowest{lowest_of(power, curved)} {}
  static Vec<T> lowest_of(V r, typename V::Mask curved) { return r - select(curved, V::all(2), V::all(1)); }
  V but_one(V d) const {
    const V q = lowest(d);
    return select(curved, q * d, q);
  }
  void add(V d, V& f, V& h, V& g) const {
    const V q = lowest(d), w = select(curved, q * d, q);
    f = fma(w, d, f);
    h = h + w;
    g = g + q;
  }
};

// sum (b - tau)_+^r = 1 for r > 1. Newton on the r-norm of d (convex), with its curvature where r >= 2 (Halley), from
// k.least. Candidates that tau has passed are dropped, once that is certain: after a step of Newton's.
template <class T, class Power>
inline Threshold<T> solve_power(Candidates<T>& k, const Powers<T, Power>& powers) {
  using V = Vec<T>;
  const double e = static_cast<double>(largest(powers.r)), rest = 1 - 1 / e;
  const double small = static_cast<double>(largest(powers.small));
  double tau = k.least, s[3];
  for (int pass = 0;; pass++) {
    T hi = static_cast<T>(tau);
    sum_over(k, hi, s, [&](V d, V& f, V& h, V& g) { powers.add(d, f, h, g); });
    double step = (s[0] - std::pow(s[0], rest)) / s[1], newton = step;
    if (any(powers.curved)) {
      double bend = 1 - 0.5 * (e - 1) * (s[2] / s[1] - s[1] / s[0]) * step;
      step /= bend > 0.5 ? bend : 0.5;
    }
    if (std::fabs(newton) < -small * tau || pass == 60) return {hi, static_cast<T>(step)};
    if (pass == 0 && !k.fixed && k.count > 4 * V::W) drop_below(k, static_cast<T>(static_cast<double>(hi) + newton * (1 - 1e-4)));
    tau = static_cast<double>(hi) + step > -1 ? static_cast<double>(hi) + step : -1;
  }
}

// The dual of pnormmax (q = p/(p-1) >= 2): sum d^(q-1) = (sum d^q)^((q-2)/q), d = (b - tau)_+.
// The difference is the derivative of |d|_q^2 / 2 in -tau, so it falls in tau: Newton inside a bracket.
// q = 3 (p = 1.5) needs squares and cubes only.
template <class T>
inline Threshold<T> solve_dual_norm(Candidates<T>& k, T q) {
  using V = Vec<T>;
  const bool cubic = q == T(3);
  double n = static_cast<double>(k.count), e = (q - 2) / static_cast<double>(q);
  double lo = -1, hi = -std::pow(n, -2 / static_cast<double>(q));
  if (k.count == 1) return {T(-1), 0};
  double tau = k.sum / n + hi;  // as if all candidates were at their mean
  if (tau < lo) tau = lo;
  if (tau > hi) tau = hi;
  for (int pass = 0;; pass++) {
    T t = static_cast<T>(tau);
    double s[3];
    if (cubic)
      sum_over(k, t, s, [&](V d, V& a, V& b, V& c) {
        V d2 = d * d;
        a = a + d;
        b = b + d2;
        c = fma(d2, d, c);
      });
    else
      sum_over(k, t, s, [&](V d, V& a, V& b, V& c) {
        V w = power(d, q - 2), v = w * d;
        a = a + w;
        b = b + v;
        c = fma(v, d, c);
      });
    double norm = cubic ? std::cbrt(s[2]) : std::pow(s[2], e);
    double value = s[1] / norm - 1;
    double slope = (-(q - 1) * s[0] + (q - 2) * s[1] * s[1] / s[2]) / norm;
    double here = static_cast<double>(t);
    (value > 0 ? lo : hi) = here;
    double step = -value / slope;
    if (std::fabs(step) < small_step<T>(tau) || pass == 80) return {t, static_cast<T>(step)};
    double next = here + step;
    if (!(next > lo && next < hi)) next = 0.5 * (lo + hi);
    if (next == tau) return {t, 0};
    tau = next;
  }
}

}  // namespace sa
