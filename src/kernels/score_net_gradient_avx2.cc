#include "kernels/score_net_gradient_body.h"
#include "kernels/score_net_gradient_isa.h"

namespace reprise::kernels {

const ScoreNetLoops kScoreNetLoopsAvx2 = {forward_body, backward_body};

}  // namespace reprise::kernels
