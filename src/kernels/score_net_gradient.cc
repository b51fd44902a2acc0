#include "kernels/score_net_gradient.h"

#include "kernels/cpu.h"
#include "kernels/score_net_gradient_body.h"
#include "kernels/score_net_gradient_isa.h"

namespace reprise::kernels {
namespace {

constexpr ScoreNetLoops kPortable = {forward_body, backward_body};

const ScoreNetLoops& loops() {
  return *form<&kPortable, &kScoreNetLoopsAvx2, &kScoreNetLoopsAvx512>();
}

}  // namespace

void score_net_forward(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                       ScoreNetScratch& scratch, float* forecast) {
  scratch.inner.assign((rows + 2) * (columns + 2) * kNetInner, 0.0f);
  scratch.outer.resize(rows * columns * kNetOuter);
  loops().forward(net, window, rows, columns, scratch, forecast);
}

void score_net_backward(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                        const float* slope, ScoreNetScratch& scratch, ScoreNet& gradient) {
  scratch.inner_slope.resize(scratch.inner.size());
  scratch.outer_slope.assign((rows + 2) * (columns + 2) * kNetOuter, 0.0f);
  loops().backward(net, window, rows, columns, slope, scratch, gradient);
}

}  // namespace reprise::kernels
