"""Elementary functions on vectors of float32 and float64, written with the instruction builder.

Every function handles IEEE special values: NaN in gives NaN out, infinities and signed zeros give the C99 results,
subnormal numbers are not flushed. Polynomials are minimax fits of the stated function on the stated interval. Functions
without a float32 version are computed in float64 and rounded, which makes them correct to little more than half a unit
in the last place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from tbe.ir import Builder, Value

__all__ = [
    "apply_binary",
    "apply_unary",
    "exp_of_negative",
    "float_max",
    "float_min",
    "reciprocal_scale",
    "scaled_reciprocal",
]

Function = Callable[[Builder, Value], Value]

_INF = math.inf
_LN2 = math.log(2.0)
_LOG2E = 1.0 / _LN2
_LN2_HI32, _LN2_LO32 = 0.693145751953125, 1.4286068203094172321e-6  # 15 bits, the rest
_LN2_HI64, _LN2_LO64 = 0.6931471803691238164901733, 1.908214929270587816144266e-10  # 32 bits, the rest
_LOG2E_LOW = float.fromhex("0x1.777d0ffda0d24p-56")
_LOG2E_LOW32 = _LOG2E - float(np.float32(_LOG2E))
_PI_2 = [
    float.fromhex(h) for h in ("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110")
]
_PI_LOW = float.fromhex("0x1.1a62633145c07p-53")

# (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2, relative to exp(r); then the same relative to exp(r) - 1
_EXP32 = (
    0.0013814324998572294,
    0.008368851343326939,
    0.04166840101558651,
    0.16666519521088577,
    0.49999993373303236,
)
_EXP64 = (
    2.4999852868185494e-8, 2.7630523070764085e-7, 2.7557588437438058e-6, 2.4801492389487459e-5,
    1.9841269502726355e-4, 1.3888888944247982e-3, 8.3333333334969269e-3, 4.1666666666528108e-2,
    1.6666666666666408e-1, 5.0000000000000108e-1,
)  # fmt: skip
_EXPM1_32 = (
    1.9914449605811071e-4, 1.3941206823174578e-3, 8.3332725854713140e-3, 4.1666352284193321e-2,
    1.6666666818829803e-1, 5.0000000469454334e-1,
)  # fmt: skip
_EXPM1_64 = (
    2.0924613840734554e-9, 2.5109261510460461e-8, 2.7557242221348319e-7, 2.7557243610116585e-6,
    2.4801587361166337e-5, 1.9841269886672358e-4, 1.3888888888866541e-3, 8.3333333333214368e-3,
    4.1666666666666702e-2, 1.6666666666666677e-1, 0.5,
)  # fmt: skip
# (2^r - 1) / r on |r| <= 1/2
_EXP2_32 = (
    1.5353141147918275e-4, 1.3399132415624138e-3, 9.6184398968920743e-3, 5.5503318549621880e-2,
    2.4022647879650982e-1, 6.9314720311426103e-1,
)  # fmt: skip
_EXP2_64 = (
    2.5625197784817617e-11, 4.4566145230076830e-10, 7.0549749897701211e-9, 1.0178051669877521e-7,
    1.3215486592540480e-6, 1.5252733854920898e-5, 1.5403530393644913e-4, 1.3333558146392119e-3,
    9.6181291076283266e-3, 5.5504108664821689e-2, 2.4022650695910072e-1, 6.9314718055994531e-1,
)  # fmt: skip
# (log(1+f) - f + f^2/2) / f^3 on [sqrt(1/2)-1, sqrt(2)-1]
_LOG32 = (
    6.7466375562526174e-2, -1.1675650702071909e-1, 1.1888162885428051e-1, -1.2405589600164546e-1,
    1.4219552537238568e-1, -1.6667995779906307e-1, 2.0002118627506986e-1, -2.5000009601641587e-1,
    3.3333312605269544e-1,
)  # fmt: skip
# (log((1+s)/(1-s)) - 2s) / s^3 as a polynomial of s^2, |s| <= 0.1717; then the same less 2/3, over s^2
_LOG64 = (
    1.4797507578658879e-1, 1.5313903306406640e-1, 1.8183569735077924e-1, 2.2222198476139768e-1,
    2.8571428743260336e-1, 3.9999999999411108e-1, 6.6666666666667349e-1,
)  # fmt: skip
_LOG64_TAIL = (
    1.3197747284502801e-1, 1.3256669197762419e-1, 1.5386763513779719e-1, 1.8181784237485095e-1,
    2.2222222521348266e-1, 2.8571428570091929e-1, 4.0000000000002271e-1,
)  # fmt: skip
# (sin x - x) / x^3 and (cos x - 1 + x^2/2) / x^4 as polynomials of x^2, |x| <= pi/4
_SIN64 = (
    1.5893583417166309e-10, -2.5050704030245468e-8, 2.7557313355947432e-6, -1.9841269828869904e-4,
    8.3333333333212851e-3, -1.6666666666666628e-1,
)  # fmt: skip
_COS64 = (
    -1.1357447962835113e-11, 2.0875681865609739e-9, -2.7557314056469822e-7, 2.4801587288491704e-5,
    -1.3888888888872598e-3, 4.1666666666666591e-2,
)  # fmt: skip
# the binary digits of 2/pi, 64 in a word
_TWO_OVER_PI = (
    0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484,
    0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB, 0xF0CFBC209AF4361D,
)  # fmt: skip
# (atan t - t) / t^3 as a polynomial of t^2, |t| <= tan(pi/8)
_ATAN64 = (
    1.5154013093650978e-2, -3.3434035361078757e-2, 4.5018168758032480e-2, -5.2179792232618587e-2,
    5.8769558971377244e-2, -6.6662200435439918e-2, 7.6922823052141018e-2, -9.0909081245363809e-2,
    1.1111111087625781e-1, -1.4285714285379194e-1, 1.9999999999997599e-1, -3.3333333333333327e-1,
)  # fmt: skip
# (asin x - x) / x^3 as a polynomial of x^2, |x| <= 1/2
_ASIN64 = (
    3.2702318271504470e-2, -2.1117011000177926e-2, 2.1790886498486170e-2, 3.6720712694828684e-3,
    1.0789355930434275e-2, 1.1397285898116356e-2, 1.3981019540820789e-2, 1.7351595403862432e-2,
    2.2372215912040614e-2, 3.0381942675029525e-2, 4.4642857175292139e-2, 7.4999999999700908e-2,
    1.6666666666666763e-1,
)  # fmt: skip
# (tanh(x) - x) / x^3 as a polynomial of x^2, |x| <= 0.6
_TANH32 = (
    -0.00589515602000323,
    0.020795969967361595,
    -0.05378382978452777,
    0.1333192412048223,
    -0.3333329800179697,
)
# erf(x)/x - 1 as a polynomial of x^2, |x| <= 0.9; then log(erfc(x)), 0.87 <= x <= 3.95
_ERF32 = (
    -6.0903593741444093e-4, 5.0119627237148600e-3, -2.6778908871479377e-2, 1.1282140811374475e-1,
    -3.7612523276228148e-1, 1.2837915379745664e-1,
)  # fmt: skip
_LOG_ERFC32 = (
    2.0153853054000635e-4, -3.0974896969764566e-3, 2.2440423206101893e-2, -1.0436830536039136e-1,
    -6.3669206571139485e-1, -1.1279621341049044, -1.2748264234254960e-4,
)  # fmt: skip
# erf(k s + t) for k = 0..15 and |t| <= s/2 as polynomials of t, less t: a row for each power, 5 first; the
# step s is such that erf(k s) for small k is close to a float32
_ERF_STEP = 16824.0 / 65536.0
_ERF_TABLE = (
    (0.112175569, 0.079230167, 0.0041988967, -0.0555420108, -0.067782253, -0.0427879281, -0.0105581395,
     0.0086847553, 0.0129577834, 0.00955711305, 0.00506631983, 0.00211234484, 0.000719327654, 0.000204103737,
     4.88417063e-05, 9.93614321e-06),
    (0, 0.12863186, 0.182218462, 0.14456822, 0.0601340793, -0.0131729962, -0.0466922447, -0.0460961945,
     -0.030943362, -0.0161029007, -0.00681415712, -0.0024003638, -0.000713453919, -0.000180475268,
     -3.90828063e-05, -7.27619454e-06),
    (-0.376122296, -0.30574742, -0.136635557, 0.0386991985, 0.145300239, 0.166193485, 0.131351307, 0.0812804252,
     0.0412016101, 0.0174882356, 0.00629351428, 0.00193533755, 0.000511242426, 0.000116446681, 2.29326033e-05,
     3.91304047e-06),
    (0, -0.271189988, -0.445085585, -0.480213523, -0.403674662, -0.278841645, -0.16207324, -0.0802759007,
     -0.0341394804, -0.0125267785, -0.00397900539, -0.00109670393, -0.000262749178, -5.47903765e-05,
     -9.95458322e-06, -1.57706313e-06),
    (0.128379166, 0.0564141795, -0.133094862, -0.376455903, -0.606883764, -0.782763362, -0.894778788,
     -0.955328345, -0.983376622, -0.994577944, -0.998449862, -0.999611557, -0.999914706, -0.999983549,
     -0.999997199, -0.999999583),
    (0, 0.283431143, 0.532220364, 0.723909914, 0.853552043, 0.930513144, 0.970615506, 0.988957107, 0.996320248,
     0.998914719, 0.999717116, 0.999934912, 0.999986768, 0.999997616, 0.999999642, 0.99999994),
)  # fmt: skip
# (1 - normal distribution function) exp(x^2 / 2) as a polynomial of t = 1 / (1 + p x) without a constant,
# 0 <= x <= 6.2, to 2^-16 of itself
_NARROW_SCALE = 0.36
_NARROW_TAIL = (
    -0.09658273243012959,
    0.24767447448430502,
    0.04402452465783575,
    0.16306963048465636,
    0.14180980894183642,
)
_GELU_CUBE = 0.044715
# gelu_slope(k s + t) for k = 0..15 and |t| <= s/2 as polynomials of t: a row for each power, 5 first
_GELU_SLOPE_STEP = 101.0 / 256.0
_GELU_SLOPE_TABLE = (
    (0.05924792, 0.03179959, -0.018555295, -0.040010523, -0.024043234, 0.001147549, 0.011626214, 0.008488857,
     0.0025289585, -0.00050283544, -0.00086065166, -0.0005213301, -0.0001901599, -6.407932e-05, -4.5257857e-05,
     1.2373291e-06),
    (0, 0.09776122, 0.109849304, 0.044376716, -0.023444341, -0.044838723, -0.029205775, -0.007967286,
     0.002620536, 0.004077838, 0.002382806, 0.0010438358, 0.00032487503, 5.2273634e-05, -4.8136226e-05,
     7.704837e-06),
    (-0.26595145, -0.18050703, -0.0014381845, 0.12682931, 0.13840173, 0.07693181, 0.015443721, -0.012887458,
     -0.01530043, -0.009084894, -0.0038094574, -0.0012270828, -0.00031585884, -6.558728e-05, -9.760688e-06,
     -1.7899797e-06),
    (0, -0.2798701, -0.38936472, -0.30457982, -0.13680169, -0.0061121625, 0.045962427, 0.044099286,
     0.025779884, 0.011152242, 0.0037969367, 0.0010411002, 0.00023471702, 4.5176716e-05, 9.936756e-06,
     6.3988784e-07),
    (0.7978845, 0.6806944, 0.40249816, 0.11863532, -0.056328658, -0.107816815, -0.08726555, -0.04954415,
     -0.021813499, -0.0077400343, -0.002255987, -0.00054613146, -0.00011056698, -1.8815157e-05, -2.7139047e-06,
     -3.2552938e-07),
    (0, 0.2990156, 0.5155421, 0.6160886, 0.62397027, 0.5881829, 0.54836273, 0.52144086, 0.5078482, 0.5023987,
     0.50061625, 0.5001337, 0.50002456, 0.5000038, 0.5000005, 0.50000006),
)  # fmt: skip
# the same of normal_excess
_NORMAL_STEP = 93.0 / 256.0
_NORMAL_TABLE = (
    (0.009952052, 0.006898792, 0.00031484352, -0.0049485452, -0.006013859, -0.0037626266, -0.00091496104,
     0.0007663854, 0.0010994534, 0.00084039156, 0.0004530727, 0.0001958344, 5.725897e-05, 2.01275e-05,
     1.0823352e-05, -7.233849e-06),
    (0, 0.01607444, 0.02278274, 0.01804268, 0.007512555, -0.001709824, -0.005801397, -0.005768706,
     -0.0038370313, -0.0019686501, -0.0008047665, -0.00026325596, -0.000102843056, -1.7460417e-05,
     7.225942e-06, -1.4138885e-05),
    (-0.06649119, -0.05402983, -0.024109328, 0.006893247, 0.025714612, 0.029370675, 0.023186522, 0.014330991,
     0.007256549, 0.0030748239, 0.0011043963, 0.0003386713, 8.9639274e-05, 2.0225598e-05, 3.7217758e-06,
     1.0136637e-06),
    (0, -0.067834765, -0.11130533, -0.120038524, -0.10084778, -0.069606036, -0.040422704, -0.019998223,
     -0.008495043, -0.003113756, -0.0009887256, -0.00027297594, -6.4333275e-05, -1.3710838e-05, -2.945926e-06,
     1.5919275e-07),
    (0.3989423, 0.37346718, 0.3063935, 0.22028828, 0.13879952, 0.07664244, 0.037088167, 0.015728455,
     0.005845485, 0.0019038898, 0.00054343697, 0.00013594043, 2.979779e-05, 5.7257485e-06, 9.661065e-07,
     1.3945957e-07),
    (0, 0.1418026, 0.266253, 0.362109, 0.42690548, 0.46534595, 0.4853597, 0.49450424, 0.49817106, 0.49946138,
     0.49985984, 0.4999678, 0.49999347, 0.49999884, 0.49999982, 0.49999997),
)  # fmt: skip
# the same of tanh_normal_excess and tanh_gelu_slope
_TANH_NORMAL_STEP = 84.0 / 256.0
_TANH_NORMAL_TABLE = (
    (0.010204961, 0.0074759955, 0.0014825568, -0.0040830094, -0.0059962347, -0.0048611793, -0.0023406183,
     -0.0002581408, 0.00081274536, 0.0012240909, 0.00083643245, 0.0005014191, 0.00022809002, 8.588794e-05,
     1.0432149e-05, -2.488497e-05),
    (0, 0.015172432, 0.022758054, 0.020198172, 0.011398223, 0.001994943, -0.0038495604, -0.005936248,
     -0.0053204657, -0.003713514, -0.0020091585, -0.0009574855, -0.00038619677, -0.00011251549, -5.6041416e-05,
     -5.4044736e-05),
    (-0.06682077, -0.056325838, -0.030205408, -0.00084950286, 0.020326687, 0.028870843, 0.02712302,
     0.020254713, 0.012685948, 0.006765431, 0.0030770784, 0.0011794146, 0.00037654288, 9.853961e-05,
     2.1343552e-05, 4.543941e-06),
    (0, -0.06226859, -0.10568233, -0.12068506, -0.110123485, -0.08488733, -0.056690086, -0.033157855,
     -0.017016519, -0.007619442, -0.0029495764, -0.00097160466, -0.00026814066, -6.151753e-05, -1.051024e-05,
     -7.6346254e-08),
    (0.3989423, 0.37794027, 0.32141283, 0.2455439, 0.16866502, 0.104219794, 0.057864223, 0.02875721,
     0.012702746, 0.0049369484, 0.0016670804, 0.00048223548, 0.00011772474, 2.388815e-05, 3.9646775e-06,
     5.244963e-07),
    (0, 0.12858064, 0.24410026, 0.33738482, 0.40514788, 0.44946155, 0.47554514, 0.48933348, 0.49584612,
     0.49857217, 0.49957243, 0.49989, 0.49997604, 0.49999565, 0.49999934, 0.4999999),
)  # fmt: skip
_TANH_GELU_SLOPE_STEP = 89.0 / 256.0
_TANH_GELU_SLOPE_TABLE = (
    (0.060661152, 0.03781786, -0.00929823, -0.03874948, -0.033543136, -0.011520429, 0.0053095086, 0.010618565,
     0.008102923, 0.003532289, 0.00017613496, -0.0010638699, -0.000877083, -0.0004001725, -0.0001026809,
     -5.2730808e-05),
    (0, 0.09160179, 0.11676508, 0.070084296, 0.0029357106, -0.036669813, -0.040463604, -0.02533061,
     -0.00863826, 0.0016103676, 0.004452472, 0.0033983756, 0.0017366825, 0.0006054632, 0.00020241919,
     -1.4443402e-05),
    (-0.26726907, -0.19820711, -0.042301606, 0.094479784, 0.14399643, 0.115328506, 0.057675485, 0.01064592,
     -0.01236869, -0.01618309, -0.011248049, -0.005504746, -0.0020055969, -0.00055048167, -0.0001142798,
     -1.6449127e-05),
    (0, -0.2540674, -0.3825424, -0.3494869, -0.21682663, -0.076776974, 0.013833831, 0.04756849, 0.04461768,
     0.028502705, 0.013862243, 0.005261686, 0.0015569092, 0.00035710848, 6.0833434e-05, 9.9215695e-06),
    (0.7978845, 0.7053212, 0.4744521, 0.21161355, 0.0117537435, -0.08852685, -0.10687904, -0.082675435,
     -0.0492425, -0.023603477, -0.009180938, -0.0028825812, -0.0007224941, -0.00014258697, -2.1821985e-05,
     -2.5590832e-06),
    (0, 0.26646352, 0.47414163, 0.59270936, 0.6288308, 0.6126448, 0.576851, 0.54322934, 0.52036613, 0.5080329,
     0.50263035, 0.5007061, 0.5001531, 0.5000264, 0.5000036, 0.50000036),
)  # fmt: skip
# erf(x)/x - 1 as a polynomial of x^2, |x| <= 1
_ERF64 = (
    5.9452626407539554e-11, -1.1365666624567702e-9, 1.4657880051993660e-8, -1.6350025260055096e-7,
    1.6460972821184673e-6, -1.4925593507190662e-5, 1.2055331036913794e-4, -8.5483269787426325e-4,
    5.2239776247808746e-3, -2.6866170645072896e-2, 1.1283791670954857e-1, -3.7612638903183748e-1,
    1.2837916709551257e-1,
)  # fmt: skip
# erfc(x) exp(x^2) (x+3)/3 as a polynomial of (x-3)/(x+3), 0 <= x <= 10.1
_ERFC32 = (
    -1.08673653448e-4, -1.61495737688e-4, 1.02669375552e-3, -4.08579045949e-4, -8.94652816997e-3, 3.98429823784e-2,
    -1.03488682252e-1, 1.96742768693e-1, -2.94464828386e-1, 3.58002302561e-1,
)  # fmt: skip
# erfc(x) exp(x^2) (1+2x) as a polynomial of (x-4)/(x+4), 0.99 <= x <= 27.5
_ERFC64 = (
    -2.5285796212806052e-8, 8.8065990217162999e-8, 9.2297915058860700e-8, -8.1022225153759140e-7,
    2.7851719269106347e-7, 5.7039627468383316e-6, -1.1214897028306614e-5, -2.4397927751022002e-5,
    1.5061967327306840e-4, -1.9925686379028261e-4, -7.5777293913592447e-4, 5.0319699904121929e-3,
    -1.6197734095254102e-2, 3.7167515537046435e-2, -6.6330365809883274e-2, 9.3732834998353572e-2,
    -1.0103906603637931e-1, 6.8097054254692746e-2, 1.5379652102620692e-2, -1.3962111684056251e-1,
    1.2329951186255525,
)  # fmt: skip
# lgamma(2+t)/t, |t| <= 1/2
_LGAMMA64 = (
    -1.4328723248356947e-7, 2.7849223806283904e-7, -4.2005160858792931e-7, 9.2031694730886355e-7,
    -2.0497504716027806e-6, 4.3845888069488476e-6, -9.4372376559377864e-6, 2.0505617599086892e-5,
    -4.4926531003376198e-5, 9.9457670007862677e-5, -2.2315473517576123e-4, 5.0966951567795190e-4,
    -1.1927539127579454e-3, 2.8905103310236643e-3, -7.3855510286497197e-3, 2.0580808427780570e-2,
    -6.7352301053198312e-2, 3.2246703342411323e-1, 4.2278433509846714e-1,
)  # fmt: skip
_STIRLING = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


# ---------------------------------------------------------------------------------------------------------
# Helpers
# ---------------------------------------------------------------------------------------------------------


def _integer(x: Value) -> str:
    return "i32" if x.elem == "float" else "i64"


def _abs(b: Builder, x: Value) -> Value:
    return b.intrinsic("fabs", x)


def _sqrt(b: Builder, x: Value) -> Value:
    return b.intrinsic("sqrt", x)


def _copysign(b: Builder, magnitude: Value, sign: Value) -> Value:
    return b.intrinsic("copysign", magnitude, sign)


def _at_most(b: Builder, x: Value, bound: float) -> Value:
    """min(x, bound), NaN preserved."""
    limit = b.like(x, bound)
    return b.select(b.fcmp("ogt", x, limit), limit, x)


def _at_least(b: Builder, x: Value, bound: float) -> Value:
    """max(x, bound), NaN preserved."""
    limit = b.like(x, bound)
    return b.select(b.fcmp("olt", x, limit), limit, x)


def _clamp(b: Builder, x: Value, low: float, high: float) -> Value:
    return _at_least(b, _at_most(b, x, high), low)


def _is(b: Builder, x: Value, value: float) -> Value:
    return b.fcmp("oeq", x, b.like(x, value))


def _either(b: Builder, p: Value, q: Value) -> Value:
    return b.op("or", p, q)


def _square_exact(b: Builder, x: Value) -> tuple[Value, Value]:
    """x * x as an unevaluated sum."""
    high = b.fmul(x, x)
    return high, b.fma(x, x, b.fneg(high))


def float_max(b: Builder, x: Value, y: Value) -> Value:
    """The larger value; NaN if either is NaN."""
    greater = b.select(b.fcmp("ogt", x, y), x, y)
    return greater if x.is_const else b.select(b.fcmp("uno", x, x), x, greater)


def float_min(b: Builder, x: Value, y: Value) -> Value:
    """The smaller value; NaN if either is NaN."""
    lesser = b.select(b.fcmp("olt", x, y), x, y)
    return lesser if x.is_const else b.select(b.fcmp("uno", x, x), x, lesser)


def reciprocal_scale(b: Builder, y: Value) -> Value:
    """A power of two that scales y into the range where its reciprocal neither overflows nor loses digits."""
    low, high, up = (2.0**-100, 2.0**100, 2.0**60) if y.elem == "float" else (2.0**-900, 2.0**900, 2.0**600)
    size = _abs(b, y)
    scale = b.select(b.fcmp("ogt", size, b.like(y, high)), b.like(y, 1.0 / up), b.like(y, 1.0))
    return b.select(b.fcmp("olt", size, b.like(y, low)), b.like(y, up), scale)


def scaled_reciprocal(b: Builder, y: Value, scale: Value) -> Value:
    """1 / (y * scale)."""
    return b.fdiv(b.like(y, 1.0), b.fmul(y, scale))


_SCALEF = {
    ("float", 16): ("ps.512", "i16 -1, i32 4"),
    ("float", 8): ("ps.256", "i8 -1"),
    ("float", 4): ("ps.128", "i8 -1"),
    ("double", 8): ("pd.512", "i8 -1, i32 4"),
    ("double", 4): ("pd.256", "i8 -1"),
    ("double", 2): ("pd.128", "i8 -1"),
}


def _ldexp(b: Builder, x: Value, n: Value) -> Value:
    """x * 2^n for integral n of moderate size, rounded once."""
    if b.machine.masks and x.lanes > 1:
        return _scalef(b, x, n)
    # n as an integer, from the low bits of n plus a number whose last bit counts ones
    bits, exponent_bits, bias = ("i32", 23, 127) if x.elem == "float" else ("i64", 52, 1023)
    magic = 1.5 * 2.0**exponent_bits
    whole = b.bitcast(b.fadd(n, b.like(n, magic)), bits)
    whole = b.op("sub", whole, b.bitcast(b.like(n, magic), bits))
    half = b.op("ashr", whole, b.const(bits, x.lanes, 1))
    rest = b.op("sub", whole, half)
    for part in (half, rest):
        biased = b.op("add", part, b.const(bits, x.lanes, bias))
        power = b.bitcast(b.op("shl", biased, b.const(bits, x.lanes, exponent_bits)), x.elem)
        x = b.fmul(x, power)
    return x


def _scalef(b: Builder, x: Value, n: Value) -> Value:
    form = _SCALEF.get((x.elem, x.lanes))
    if form is None:
        if x.lanes == 2 or x.lanes * (4 if x.elem == "float" else 8) < 16:
            wide = [b.shuffle(v, None, [*range(x.lanes), *[0] * (4 - x.lanes)]) for v in (x, n)]
            return b.shuffle(_scalef(b, *wide), None, range(x.lanes))
        half = x.lanes // 2
        halves = [_scalef(b, *(b.shuffle(v, None, range(k, k + half)) for v in (x, n))) for k in (0, half)]
        return b.shuffle(halves[0], halves[1], range(x.lanes))
    suffix, rest = form
    function = f"llvm.x86.avx512.mask.scalef.{suffix}"
    kinds = ", ".join(part.split()[0] for part in rest.split(", "))
    b.declared.setdefault(function, f"declare {x.ty} @{function}({x.ty}, {x.ty}, {x.ty}, {kinds})")
    text = f"call {x.ty} @{function}({x.ty} {x.name}, {x.ty} {n.name}, {x.ty} zeroinitializer, {rest})"
    return b.emit(text, x.elem, x.lanes)


def _round(b: Builder, x: Value) -> Value:
    return b.intrinsic("rint", x)


# ---------------------------------------------------------------------------------------------------------
# Exponentials
# ---------------------------------------------------------------------------------------------------------


def _reduced(b: Builder, x: Value) -> tuple[Value, Value]:
    """Integral n and r with x = n ln 2 + r, |r| <= ln(2)/2."""
    n = _round(b, b.fmul(x, b.like(x, _LOG2E)))
    high, low = (_LN2_HI32, _LN2_LO32) if x.elem == "float" else (_LN2_HI64, _LN2_LO64)
    r = b.muladd(n, b.like(x, -high), x)  # n * high is exact: the product has few enough bits
    return n, b.muladd(n, b.like(x, -low), r)


def _exp(b: Builder, x: Value) -> Value:
    return _exp_bounded(b, _clamp(b, x, -104.0, 89.0) if x.elem == "float" else _clamp(b, x, -746.0, 710.0))


def exp_of_negative(b: Builder, x: Value) -> Value:
    """exp of numbers known to be non-positive."""
    return _exp_bounded(b, _at_least(b, x, -104.0 if x.elem == "float" else -746.0))


def _exp_bounded(b: Builder, x: Value) -> Value:
    """exp of numbers not far outside the range where it neither underflows nor overflows."""
    n, r = _reduced(b, x)
    coefficients = _EXP32 if x.elem == "float" else _EXP64
    if b.machine.fma:
        return _ldexp(b, b.polynomial(r, (*coefficients, 1.0, 1.0)), n)
    tail = b.fadd(b.fmul(b.polynomial(r, coefficients), b.fmul(r, r)), r)  # loses less without fused steps
    return _ldexp(b, b.fadd(tail, b.like(x, 1.0)), n)


def _exp_of_sum(b: Builder, x: Value, low: Value) -> Value:
    """exp(x + low) for a tiny low part."""
    bounded = _clamp(b, x, -746.0, 710.0)
    n, r = _reduced(b, bounded)
    low = b.select(b.fcmp("une", bounded, x), b.like(x, 0.0), low)
    r = b.fadd(r, low)
    p = b.polynomial(r, _EXP64)
    p = b.muladd(p, b.fmul(r, r), r)
    return _ldexp(b, b.fadd(p, b.like(x, 1.0)), n)


def _exp2(b: Builder, x: Value) -> Value:
    x = _clamp(b, x, -151.0, 129.0) if x.elem == "float" else _clamp(b, x, -1077.0, 1025.0)
    n = _round(b, x)
    r = b.fsub(x, n)
    p = b.polynomial(r, _EXP2_32 if x.elem == "float" else _EXP2_64)
    return _ldexp(b, b.muladd(p, r, b.like(x, 1.0)), n)


def _expm1(b: Builder, x: Value) -> Value:
    single = x.elem == "float"
    bounded = _clamp(b, x, -18.0, 89.0) if single else _clamp(b, x, -38.0, 710.0)
    n, r = _reduced(b, bounded)
    p = b.polynomial(r, _EXPM1_32 if single else _EXPM1_64)
    q = b.muladd(p, b.fmul(r, r), r)  # exp(r) - 1
    one = b.like(x, 1.0)
    large = b.fcmp("ogt", n, b.like(x, 30.0 if single else 60.0))
    scale = _ldexp(b, one, b.select(large, one, n))
    small = b.fma(scale, q, b.fsub(scale, one))
    result = b.select(large, _ldexp(b, b.fadd(q, one), n), small)
    return b.select(_is(b, x, 0.0), x, result)  # keeps the sign of zero


def _sigmoid(b: Builder, x: Value) -> Value:
    e = exp_of_negative(b, b.fneg(_abs(b, x)))
    one = b.like(x, 1.0)
    top = b.select(b.fcmp("oge", x, b.like(x, 0.0)), one, e)
    return b.fdiv(top, b.fadd(one, e))


def _softplus(b: Builder, x: Value) -> Value:
    return b.fadd(_at_least(b, x, 0.0), _log1p(b, exp_of_negative(b, b.fneg(_abs(b, x)))))


def _tanh32(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    z = b.fmul(x, x)
    near = b.muladd(b.fmul(x, z), b.polynomial(z, _TANH32), x)
    one = b.like(x, 1.0)
    e = _exp_bounded(b, b.fmul(_at_most(b, a, 10.0), b.like(x, 2.0)))
    far = b.fsub(one, b.fdiv(b.like(x, 2.0), b.fadd(e, one)))
    return _copysign(b, b.select(b.fcmp("olt", a, b.like(x, 0.55)), near, far), x)  # of zero too


def _tanh64(b: Builder, x: Value) -> Value:
    t = _expm1(b, b.fmul(_at_most(b, _abs(b, x), 22.0), b.like(x, 2.0)))
    return _copysign(b, b.fdiv(t, b.fadd(t, b.like(x, 2.0))), x)


def _sinh(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    half, one = b.like(x, 0.5), b.like(x, 1.0)
    t = _expm1(b, _at_most(b, a, 24.0))
    small = b.fmul(half, b.fadd(t, b.fdiv(t, b.fadd(t, one))))
    root = _exp(b, b.fmul(a, half))
    large = b.fmul(b.fmul(root, half), root)
    return _copysign(b, b.select(b.fcmp("ogt", a, b.like(x, 24.0)), large, small), x)


def _cosh(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    half = b.like(x, 0.5)
    e = _exp(b, _at_most(b, a, 24.0))
    small = b.fmul(half, b.fadd(e, b.fdiv(b.like(x, 1.0), e)))
    root = _exp(b, b.fmul(a, half))
    large = b.fmul(b.fmul(root, half), root)
    return b.select(b.fcmp("ogt", a, b.like(x, 24.0)), large, small)


# ---------------------------------------------------------------------------------------------------------
# Logarithms
# ---------------------------------------------------------------------------------------------------------


def _split_log(b: Builder, x: Value) -> tuple[Value, Value]:
    """Exponent e and f in [sqrt(1/2)-1, sqrt(2)-1] with x = 2^e (1 + f), for positive finite x."""
    if x.elem == "float":
        kind, shift, root, tiny, up = "i32", 23, 0x3F3504F3, 2.0**-126, 23
    else:
        kind, shift, root, tiny, up = "i64", 52, 0x3FE6A09E667F3BCD, 2.0**-1022, 52
    subnormal = b.fcmp("olt", x, b.like(x, tiny))
    scaled = b.select(subnormal, b.fmul(x, b.like(x, 2.0**up)), x)
    offset = b.op("sub", b.bitcast(scaled, kind), b.const(kind, x.lanes, root))
    exponent = b.op("ashr", offset, b.const(kind, x.lanes, shift))
    mantissa = b.op("and", offset, b.const(kind, x.lanes, (1 << shift) - 1))
    mantissa = b.bitcast(b.op("add", mantissa, b.const(kind, x.lanes, root)), x.elem)
    if kind == "i64":
        exponent = b.convert("trunc", exponent, "i32")
    e = b.convert("sitofp", exponent, x.elem)
    e = b.select(subnormal, b.fsub(e, b.like(x, float(up))), e)
    return e, b.fsub(mantissa, b.like(x, 1.0))


def _log_special(b: Builder, x: Value, result: Value) -> Value:
    """Logarithm of infinity, zero and negative numbers."""
    result = b.select(_is(b, x, _INF), x, result)
    result = b.select(b.fcmp("ult", x, b.like(x, 0.0)), b.like(x, math.nan), result)
    return b.select(_is(b, x, 0.0), b.like(x, -_INF), result)


def _log_parts(b: Builder, f: Value) -> tuple[Value, Value]:
    """log(1+f) as f + rest."""
    half_square = b.fmul(b.fmul(f, f), b.like(f, 0.5))
    if f.elem == "float":
        cube = b.fmul(b.fmul(f, f), f)
        return f, b.fma(cube, b.polynomial(f, _LOG32), b.fneg(half_square))
    s = b.fdiv(f, b.fadd(f, b.like(f, 2.0)))
    z = b.fmul(s, s)
    r = b.fmul(z, b.polynomial(z, _LOG64))
    return f, b.fsub(b.fmul(s, b.fadd(half_square, r)), half_square)


def _log(b: Builder, x: Value) -> Value:
    high, low = (_LN2_HI32, _LN2_LO32) if x.elem == "float" else (_LN2_HI64, _LN2_LO64)
    e, f = _split_log(b, x)
    f, rest = _log_parts(b, f)
    rest = b.muladd(e, b.like(x, low), rest)
    return _log_special(b, x, b.muladd(e, b.like(x, high), b.fadd(f, rest)))


def _log2(b: Builder, x: Value) -> Value:
    e, f = _split_log(b, x)
    f, rest = _log_parts(b, f)
    low = _LOG2E_LOW if x.elem == "double" else _LOG2E_LOW32
    high = b.like(x, _LOG2E)
    tail = b.fma(rest, high, b.fmul(f, b.like(x, low)))
    product = b.fmul(f, high)
    error = b.fma(f, high, b.fneg(product))
    total = b.fadd(e, product)
    lost = b.fsub(product, b.fsub(total, e))
    return _log_special(b, x, b.fadd(total, b.fadd(lost, b.fadd(error, tail))))


def _log1p(b: Builder, x: Value) -> Value:
    one = b.like(x, 1.0)
    u = b.fadd(x, one)
    lost = b.fsub(x, b.fsub(u, one))  # the rounding error of 1 + x
    exact = _either(b, _is(b, u, 0.0), b.fcmp("ogt", x, b.like(x, 2.0**60)))
    correction = b.select(exact, b.like(x, 0.0), b.fdiv(lost, u))
    return b.select(_is(b, x, 0.0), x, b.fadd(_log(b, u), correction))


def _asinh(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    one = b.like(x, 1.0)
    bounded = _at_most(b, a, 2.0**30)
    square = b.fmul(bounded, bounded)
    root = _sqrt(b, b.fadd(square, one))
    small = _log1p(b, b.fadd(bounded, b.fdiv(square, b.fadd(one, root))))
    large = b.fadd(_log(b, a), b.like(x, _LN2))
    return _copysign(b, b.select(b.fcmp("ogt", a, b.like(x, 2.0**30)), large, small), x)


def _acosh(b: Builder, x: Value) -> Value:
    t = b.fsub(_at_most(b, x, 2.0**30), b.like(x, 1.0))
    small = _log1p(b, b.fadd(t, _sqrt(b, b.fma(t, t, b.fadd(t, t)))))
    large = b.fadd(_log(b, x), b.like(x, _LN2))
    value = b.select(b.fcmp("ogt", x, b.like(x, 2.0**30)), large, small)
    return b.select(b.fcmp("olt", x, b.like(x, 1.0)), b.like(x, math.nan), value)


def _atanh(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    t = b.fdiv(b.fadd(a, a), b.fsub(b.like(x, 1.0), a))
    return _copysign(b, b.fmul(_log1p(b, t), b.like(x, 0.5)), x)


# ---------------------------------------------------------------------------------------------------------
# Trigonometry, in float64
# ---------------------------------------------------------------------------------------------------------


def _quarter_turns(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Integral n (mod 4 for large x) and r + low with x = n pi/2 + r + low, |r| <= pi/4.

    The usual reduction subtracts n times three parts of pi/2. Vectors with an argument for which n would not be exact
    branch to a reduction that multiplies by the relevant digits of 2/pi.
    """
    n = _round(b, b.fmul(x, b.like(x, 2.0 / math.pi)))
    minus = b.fneg(n)
    r = b.fma(minus, b.like(x, _PI_2[0]), x)
    second = b.fmul(minus, b.like(x, _PI_2[1]))
    second_low = b.fma(minus, b.like(x, _PI_2[1]), b.fneg(second))
    total, low = _two_sum(b, r, second)
    low = b.fadd(low, b.fma(minus, b.like(x, _PI_2[2]), second_low))
    usual = (n, total, low)
    large = b.fcmp("oge", _abs(b, x), b.like(x, 2.0**40))
    before, slow, done = b.block, b.label("large"), b.label("reduced")
    b.line(f"br i1 {_any(b, large).name}, label %{slow}, label %{done}")
    b.start_block(slow)
    exact = [b.select(large, v, u) for v, u in zip(_large_quarter_turns(b, x), usual, strict=True)]
    b.line(f"br label %{done}")
    after = b.block
    b.start_block(done)
    n, r, low = (
        b.emit(f"phi {x.ty} [{u.name}, %{before}], [{v.name}, %{after}]", x.elem, x.lanes)
        for u, v in zip(usual, exact, strict=True)
    )
    return n, r, low


def _large_quarter_turns(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """n mod 4 and r + low with x = n pi/2 + r + low for 2**40 <= |x| < inf, by the method of Payne and Hanek.

    x is an integer m times 2**k. Digits of 2**k 2/pi worth 4 or more do not change n mod 4; of the others, 192 leave an
    error below 2**-137 in m 2**k 2/pi, which is never closer than 2**-62 to an integer.
    """

    def word(value: int) -> Value:
        return b.const("i64", x.lanes, value)

    def real(digits: Value, scale: float) -> Value:
        """A nonnegative integer below 2**52 times a power of two."""
        shifted = b.bitcast(b.op("or", digits, word(0x433 << 52)), "double")
        return b.fmul(b.fsub(shifted, b.like(x, 2.0**52)), b.like(x, scale))

    low_half, bits = word(2**32 - 1), b.bitcast(_abs(b, x), "i64")
    mantissa = b.op("or", b.op("and", bits, word(2**52 - 1)), word(1 << 52))
    # the first digit is to be worth 2 after multiplication by 2**k; 64 zeros stand before the table
    start = b.op("sub", b.op("lshr", bits, word(52)), word(1075 + 2 - 64))
    chosen = [word(value) for value in (0, *_TWO_OVER_PI)]
    for bit in (4, 3, 2, 1, 0):
        step, count = 1 << bit, 4 + (1 << bit) - 1
        skips = b.icmp("ne", b.op("and", start, word(64 * step)), word(0))
        chosen = [
            b.select(skips, chosen[i + step], chosen[i]) if i + step < len(chosen) else chosen[i]
            for i in range(min(count, len(chosen)))
        ]
    shift = b.op("and", start, word(63))
    window = [b.intrinsic("fshl", *pair, shift) for pair in itertools.pairwise(chosen)]
    digits: list[Value] = []  # of 32 bits, the lowest first
    for whole in reversed(window):
        digits += [b.op("and", whole, low_half), b.op("lshr", whole, word(32))]
    product = [word(0)] * len(digits)
    factors = [b.op("and", mantissa, low_half), b.op("lshr", mantissa, word(32))]
    for place, factor in enumerate(factors):
        carry = word(0)
        for i in range(place, len(digits)):
            total = b.op("add", b.op("mul", factor, digits[i - place]), b.op("add", product[i], carry))
            product[i], carry = b.op("and", total, low_half), b.op("lshr", total, word(32))
    # the top digit has two bits before the point; half a quarter turn is added, so that n rounds to nearest
    top = b.op("add", product[-1], word(1 << 29))
    n = real(b.op("and", b.op("lshr", top, word(30)), word(3)), 1.0)
    high = b.fsub(real(b.op("and", top, word(2**30 - 1)), 2.0**-30), b.like(x, 0.5))
    low = b.like(x, 0.0)
    for i, digit in enumerate(reversed(product[1:-1])):
        high, lost = _two_sum(b, high, real(digit, 2.0 ** (-62 - 32 * i)))
        low = b.fadd(low, lost)
    r = b.fmul(high, b.like(x, _PI_2[0]))
    rest = b.fma(high, b.like(x, _PI_2[0]), b.fneg(r))
    rest = b.fadd(rest, b.fma(high, b.like(x, _PI_2[1]), b.fmul(low, b.like(x, _PI_2[0]))))
    negative = b.fcmp("olt", x, b.like(x, 0.0))
    n, r, rest = (b.select(negative, b.fneg(v), v) for v in (n, r, rest))
    return n, r, rest


def _sin_cos(b: Builder, r: Value, low: Value) -> tuple[Value, Value]:
    """Sine and cosine of r + low for |r| <= pi/4."""
    z = b.fmul(r, r)
    half = b.fmul(z, b.like(r, 0.5))
    cube = b.fmul(z, r)
    sine = b.fma(cube, b.polynomial(z, _SIN64), b.fmul(low, b.fsub(b.like(r, 1.0), half)))
    sine = b.fadd(r, sine)
    one = b.like(r, 1.0)
    first = b.fsub(one, half)
    lost = b.fsub(b.fsub(one, first), half)
    rest = b.fsub(b.fma(b.fmul(z, z), b.polynomial(z, _COS64), lost), b.fmul(r, low))
    return sine, b.fadd(first, rest)


def _quadrant(b: Builder, n: Value) -> tuple[Value, Value]:
    """Whether n is odd, and whether n mod 4 is 2 or 3."""
    quarter = b.intrinsic("floor", b.fmul(n, b.like(n, 0.25)))
    q = b.fsub(n, b.fmul(quarter, b.like(n, 4.0)))
    odd = _either(b, _is(b, q, 1.0), _is(b, q, 3.0))
    return odd, b.fcmp("oge", q, b.like(n, 2.0))


def _sin(b: Builder, x: Value) -> Value:
    n, r, low = _quarter_turns(b, x)
    sine, cosine = _sin_cos(b, r, low)
    odd, negative = _quadrant(b, n)
    value = b.select(odd, cosine, sine)
    value = b.select(negative, b.fneg(value), value)
    value = b.select(_is(b, x, 0.0), x, value)
    return b.select(_is(b, _abs(b, x), _INF), b.like(x, math.nan), value)


def _cos(b: Builder, x: Value) -> Value:
    n, r, low = _quarter_turns(b, x)
    sine, cosine = _sin_cos(b, r, low)
    odd, negative = _quadrant(b, n)
    value = b.select(odd, sine, cosine)
    value = b.select(b.op("xor", odd, negative), b.fneg(value), value)
    return b.select(_is(b, _abs(b, x), _INF), b.like(x, math.nan), value)


def _tan(b: Builder, x: Value) -> Value:
    n, r, low = _quarter_turns(b, x)
    sine, cosine = _sin_cos(b, r, low)
    odd, _ = _quadrant(b, n)
    value = b.fdiv(b.select(odd, b.fneg(cosine), sine), b.select(odd, sine, cosine))
    value = b.select(_is(b, x, 0.0), x, value)
    return b.select(_is(b, _abs(b, x), _INF), b.like(x, math.nan), value)


def _atan_positive(b: Builder, top: Value, bottom: Value) -> Value:
    """atan(top / bottom) for nonnegative operands, not both zero or infinite."""
    zero = b.like(top, 0.0)
    steep = b.fcmp("ogt", top, b.fmul(bottom, b.like(top, 2.414213562373095)))
    middle = b.fcmp("ogt", top, b.fmul(bottom, b.like(top, 0.41421356237309503)))
    numerator = b.select(steep, b.fneg(bottom), b.select(middle, b.fsub(top, bottom), top))
    denominator = b.select(steep, top, b.select(middle, b.fadd(top, bottom), bottom))
    t = b.fdiv(numerator, denominator)
    z = b.fmul(t, t)
    tail = b.fmul(b.fmul(t, z), b.polynomial(z, _ATAN64))
    base = b.select(steep, b.like(top, math.pi / 2), b.select(middle, b.like(top, math.pi / 4), zero))
    low = b.select(steep, b.like(top, _PI_LOW / 2), b.select(middle, b.like(top, _PI_LOW / 4), zero))
    return b.fadd(base, b.fadd(t, b.fadd(tail, low)))


def _atan(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    value = _atan_positive(b, _at_most(b, a, 1e300), b.like(x, 1.0))
    return _copysign(b, value, x)


def _atan2(b: Builder, y: Value, x: Value) -> Value:
    top, bottom = _abs(b, y), _abs(b, x)
    infinite = b.op("and", _is(b, top, _INF), _is(b, bottom, _INF))
    nothing = b.op("and", _is(b, top, 0.0), _is(b, bottom, 0.0))
    one = b.like(x, 1.0)
    # scale both into the middle of the range, so that sums and products neither overflow nor underflow
    large = _either(b, b.fcmp("ogt", top, b.like(x, 2.0**1000)), b.fcmp("ogt", bottom, b.like(x, 2.0**1000)))
    scale = b.select(large, b.like(x, 2.0**-100), one)
    top, bottom = b.fmul(top, scale), b.fmul(bottom, scale)
    small = b.op("and", b.fcmp("olt", top, b.like(x, 2.0**-900)), b.fcmp("olt", bottom, b.like(x, 2.0**-900)))
    scale = b.select(small, b.like(x, 2.0**100), one)
    top, bottom = b.fmul(top, scale), b.fmul(bottom, scale)
    top = b.select(infinite, one, top)
    bottom = b.select(_either(b, infinite, nothing), one, bottom)
    value = _atan_positive(b, _at_most(b, top, 1e307), bottom)
    value = b.select(
        b.op("and", _is(b, top, _INF), b.fcmp("olt", bottom, b.like(x, _INF))), b.like(x, math.pi / 2), value
    )
    left = b.icmp("slt", b.bitcast(x, "i64"), b.const("i64", x.lanes, 0))
    value = b.select(left, b.fadd(b.fsub(b.like(x, math.pi), value), b.like(x, _PI_LOW)), value)
    return _copysign(b, value, y)


def _asin_core(b: Builder, x: Value) -> Value:
    """asin for |x| <= 1/2, without its linear term."""
    z = b.fmul(x, x)
    return b.fmul(b.fmul(x, z), b.polynomial(z, _ASIN64))


def _asin(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    half = b.like(x, 0.5)
    outside = b.fcmp("ogt", a, half)
    root = _sqrt(b, b.fmul(b.fsub(b.like(x, 1.0), a), half))
    t = b.select(outside, root, a)
    core = b.fadd(t, _asin_core(b, t))
    two = b.like(x, 2.0)
    large = b.fsub(b.like(x, math.pi / 2), b.fsub(b.fmul(two, core), b.like(x, _PI_LOW / 2)))
    return _copysign(b, b.select(outside, large, core), x)


def _acos(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    half, two = b.like(x, 0.5), b.like(x, 2.0)
    outside = b.fcmp("ogt", a, half)
    root = _sqrt(b, b.fmul(b.fsub(b.like(x, 1.0), a), half))
    t = b.select(outside, root, x)
    core = b.fadd(t, _asin_core(b, t))
    twice = b.fmul(two, core)
    left = b.fcmp("olt", x, b.like(x, 0.0))
    far = b.select(left, b.fsub(b.like(x, math.pi), b.fsub(twice, b.like(x, _PI_LOW))), twice)
    near = b.fsub(b.like(x, math.pi / 2), b.fsub(core, b.like(x, _PI_LOW / 2)))
    return b.select(outside, far, near)


# ---------------------------------------------------------------------------------------------------------
# Error function, gamma
# ---------------------------------------------------------------------------------------------------------


def _nearest_step(b: Builder, a: Value, step: float) -> tuple[Value, Value]:
    """The index of the multiple of a step nearest to a, and the distance to it."""
    magic = b.like(a, 1.5 * 2.0**23)  # its last bit counts ones
    shifted = b.muladd(a, b.like(a, 1.0 / step), magic)
    return b.bitcast(shifted, "i32"), b.muladd(b.fsub(shifted, magic), b.like(a, -step), a)


def _erf_by_table(b: Builder, x: Value) -> Value:
    """erf with polynomials looked up by a permutation of 16 lanes, if the machine has one."""
    number, t = _nearest_step(b, _at_most(b, _abs(b, x), 3.97), _ERF_STEP)
    result = _looked_up(b, _ERF_TABLE[0], number)
    for row in _ERF_TABLE[1:-1]:
        result = b.muladd(result, t, _looked_up(b, row, number))
    result = b.fadd(b.muladd(result, t, t), _looked_up(b, _ERF_TABLE[-1], number))
    return _copysign(b, result, x)


def _looked_up(b: Builder, row: tuple[float, ...], number: Value) -> Value:
    """row[number mod 16] in every lane, 16 lanes at a time."""
    if number.lanes > 16:
        half = number.lanes // 2
        parts = [b.shuffle(number, None, range(at, at + half)) for at in (0, half)]
        low, high = (_looked_up(b, row, part) for part in parts)
        return b.shuffle(low, high, range(number.lanes))
    table = b.vector("float", row)
    function = "llvm.x86.avx512.permvar.sf.512"
    b.declared.setdefault(function, f"declare {table.ty} @{function}({table.ty}, {number.ty})")
    return b.emit(
        f"call {table.ty} @{function}({table.ty} {table.name}, {number.ty} {number.name})", "float", 16
    )


def _has_tables(b: Builder, x: Value) -> bool:
    return b.machine.masks and x.lanes in (16, 32, 64)


def _odd_by_table(
    last: float, step: float, table: tuple[tuple[float, ...], ...], otherwise: Function
) -> Function:
    """An odd function that is exactly 1/2 from `last` on: it may be multiplied by a large number there.

    Machines without tables compute it by `otherwise`.
    """

    def function(b: Builder, x: Value) -> Value:
        if not _has_tables(b, x):
            return otherwise(b, x)
        a = _abs(b, x)
        number, t = _nearest_step(b, a, step)
        result = _looked_up(b, table[0], number)
        for row in table[1:]:
            result = b.muladd(result, t, _looked_up(b, row, number))
        far = b.fcmp("oge", a, b.like(a, last))
        return _copysign(b, b.select(far, b.like(a, 0.5), result), x)

    return function


def _normal_excess(b: Builder, x: Value) -> Value:
    """erf(x / sqrt 2) / 2"""
    erf = (_erf32 if x.elem == "float" else _erf64)(b, b.fmul(x, b.like(x, math.sqrt(0.5))))
    return b.fmul(erf, b.like(x, 0.5))


def _narrow_normal_share(b: Builder, x: Value) -> Value:
    """The normal distribution function of x, to the precision of 16-bit results, also relative to small ones."""
    if not b.machine.quick or x.elem != "float":
        return b.fadd((_SINGLE if x.elem == "float" else _DOUBLE)["normal_excess"](b, x), b.like(x, 0.5))
    a, one = _abs(b, x), b.like(x, 1.0)
    t = _quick_reciprocal(b, b.muladd(a, b.like(x, _NARROW_SCALE), one))
    power = _quick_exp2(b, b.fmul(b.fmul(a, b.like(x, -0.5 * _LOG2E)), a))
    tail = b.fmul(b.fmul(b.polynomial(t, _NARROW_TAIL), t), power)
    return b.select(b.fcmp("ogt", x, b.like(x, 0.0)), b.fsub(one, tail), tail)


def _narrow_gelu_slope(b: Builder, x: Value) -> Value:
    """The derivative of GELU, to 2^-16, also of small ones left of its zero at -0.75."""
    if not b.machine.quick or x.elem != "float":
        return b.fadd((_SINGLE if x.elem == "float" else _DOUBLE)["gelu_slope"](b, x), b.like(x, 0.5))
    a, one = _at_most(b, _abs(b, x), 40.0), b.like(x, 1.0)
    t = _quick_reciprocal(b, b.muladd(a, b.like(x, _NARROW_SCALE), one))
    power = _quick_exp2(b, b.fmul(b.fmul(a, b.like(x, -0.5 * _LOG2E)), a))
    tail = b.fmul(b.polynomial(t, _NARROW_TAIL), t)
    rest = b.fmul(b.muladd(a, b.like(x, -1 / math.sqrt(2 * math.pi)), tail), power)
    return b.select(b.fcmp("ogt", x, b.like(x, 0.0)), b.fsub(one, rest), rest)


def _narrow_tanh_gelu_slope(b: Builder, x: Value) -> Value:
    """The same for tanh-GELU: with e = exp(-2 u) and s = 1 / (1 + e), (1 + tanh u) / 2 is s, its slope 2 e s s u'."""
    if not b.machine.quick or x.elem != "float":
        return b.fadd((_SINGLE if x.elem == "float" else _DOUBLE)["tanh_gelu_slope"](b, x), b.like(x, 0.5))
    a, one = _at_most(b, _abs(b, x), 40.0), b.like(x, 1.0)
    root = 2 * math.sqrt(2 / math.pi)
    slope = b.muladd(b.fmul(a, a), b.like(x, 3 * _GELU_CUBE * root), b.like(x, root))
    e = _quick_exp2(b, _near_erf(b, a, -2.0 * _LOG2E))
    share = _quick_reciprocal(b, b.fadd(one, e))
    rest = b.fmul(b.fmul(e, share), b.fsub(one, b.fmul(b.fmul(a, slope), share)))
    return b.select(b.fcmp("ogt", x, b.like(x, 0.0)), b.fsub(one, rest), rest)


def _quick_exp2(b: Builder, x: Value) -> Value:
    """2 to the power of x <= 0, to a relative error of 2^-20; 0 if the result is not normal."""
    return _exp2(b, x) if b.machine.name == "simulated" else _by_lane(b, "nvvm.ex2.approx.ftz", x)


def _quick_reciprocal(b: Builder, x: Value) -> Value:
    """1 / x for x >= 1, to a relative error of 2^-20."""
    return _reciprocal(b, x) if b.machine.name == "simulated" else _by_lane(b, "nvvm.rcp.approx.ftz", x)


def _by_lane(b: Builder, name: str, x: Value) -> Value:
    """Apply an intrinsic for one float32 to every lane."""
    found = [b.intrinsic(name, b.extract(x, lane), suffix="f") for lane in range(x.lanes)]
    joined = found[0] if x.lanes == 1 else b.like(x, 0.0)
    for lane, value in enumerate(found if x.lanes > 1 else ()):
        joined = b.emit(
            f"insertelement {joined.ty} {joined.name}, float {value.name}, i64 {lane}", "float", x.lanes
        )
    return joined


def _gelu_slope(b: Builder, x: Value) -> Value:
    """normal_excess + x times the density of the normal distribution."""
    a = _at_most(b, _abs(b, x), 40.0)
    power = exp_of_negative(b, b.fmul(b.fmul(a, a), b.like(x, -0.5)))
    density = b.fmul(power, b.like(x, 1 / math.sqrt(2 * math.pi)))
    return _copysign(b, b.muladd(a, density, _normal_excess(b, a)), x)


def _tanh_normal_excess(b: Builder, x: Value) -> Value:
    """tanh(sqrt(2 / pi) (x + 0.044715 x^3)) / 2"""
    tanh = _tanh32 if x.elem == "float" else _tanh64
    return b.fmul(tanh(b, _near_erf(b, x, 1.0)), b.like(x, 0.5))


def _near_erf(b: Builder, x: Value, factor: float) -> Value:
    """The factor times the argument with which tanh approximates erf(x / sqrt 2)."""
    root = factor * math.sqrt(2 / math.pi)
    return b.fmul(x, b.muladd(b.fmul(x, x), b.like(x, root * _GELU_CUBE), b.like(x, root)))


def _tanh_gelu_slope(b: Builder, x: Value) -> Value:
    """tanh_normal_excess + x times its derivative."""
    a = _at_most(b, _abs(b, x), 40.0)
    root, one = 2 * math.sqrt(2 / math.pi), b.like(x, 1.0)
    slope = b.muladd(b.fmul(a, a), b.like(x, 3 * _GELU_CUBE * root), b.like(x, root))
    e = exp_of_negative(b, _near_erf(b, a, -2.0))
    share = b.fdiv(one, b.fadd(one, e))
    spread = b.fmul(b.fmul(e, share), share)  # a quarter of 1 - tanh^2
    return _copysign(b, b.muladd(b.fmul(a, slope), spread, _tanh_normal_excess(b, a)), x)


def _erf32(b: Builder, x: Value) -> Value:
    if _has_tables(b, x):
        return _erf_by_table(b, x)
    a = _abs(b, x)
    z = b.fmul(x, x)
    near = b.muladd(x, b.polynomial(z, _ERF32), x)
    tail = _exp_bounded(b, b.polynomial(_at_most(b, a, 3.95), _LOG_ERFC32))
    far = b.fsub(b.like(x, 1.0), tail)
    return _copysign(b, b.select(b.fcmp("olt", a, b.like(x, 0.88)), near, far), x)


def _erfc_tail(b: Builder, a: Value) -> Value:
    """erfc for a >= 1."""
    a = _at_most(b, a, 27.5)
    four = b.like(a, 4.0)
    t = b.fdiv(b.fsub(a, four), b.fadd(a, four))
    high, low = _square_exact(b, a)
    scale = _exp_of_sum(b, b.fneg(high), b.fneg(low))
    p = b.polynomial(t, _ERFC64)
    return b.fmul(scale, b.fdiv(p, b.muladd(a, b.like(a, 2.0), b.like(a, 1.0))))


def _erf64(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    z = b.fmul(x, x)
    near = b.fma(x, b.polynomial(z, _ERF64), x)
    far = b.fsub(b.like(x, 1.0), _erfc_tail(b, a))
    return _copysign(b, b.select(b.fcmp("olt", a, b.like(x, 1.0)), near, far), x)


def _erfc32(b: Builder, x: Value) -> Value:
    if not b.machine.fma:  # no fused multiply-add to square exactly with
        return b.convert("fptrunc", _erfc(b, b.convert("fpext", x, "double")), "float")
    a = _at_most(b, _abs(b, x), 10.1)
    three = b.like(a, 3.0)
    total = b.fadd(a, three)
    lost = b.fsub(a, b.fsub(total, three))
    share = b.fdiv(three, total)
    rest = b.fma(b.fneg(share), lost, b.fma(b.fneg(share), total, three))  # of the division, times total
    more = b.fmul(rest, b.fmul(share, b.like(a, 1.0 / 3.0)))
    t = b.fma(more, b.like(a, -2.0), b.fma(share, b.like(a, -2.0), b.like(a, 1.0)))
    share = b.fadd(share, more)
    high, low = _square_exact(b, a)
    n, r = _reduced(b, b.fneg(high))
    scale = b.polynomial(b.fsub(r, low), (*_EXP32, 1.0, 1.0))
    tail = _ldexp(b, b.fmul(scale, b.fmul(share, b.polynomial(t, _ERFC32))), n)
    return b.select(b.fcmp("olt", x, b.like(x, 0.0)), b.fsub(b.like(x, 2.0), tail), tail)


def _erfc(b: Builder, x: Value) -> Value:
    a = _abs(b, x)
    one = b.like(x, 1.0)
    near = b.fma(b.fneg(x), b.polynomial(b.fmul(x, x), _ERF64), b.fsub(one, x))
    tail = _erfc_tail(b, a)
    far = b.select(b.fcmp("olt", x, b.like(x, 0.0)), b.fsub(b.like(x, 2.0), tail), tail)
    return b.select(b.fcmp("olt", a, one), near, far)


def _lgamma_positive(b: Builder, x: Value) -> Value:
    """log gamma of x > 0."""
    one = b.like(x, 1.0)
    moderate = _clamp(b, x, 0.0, 8.6)
    product, y = one, moderate
    for _ in range(7):  # down into [1.5, 2.5)
        above = b.fcmp("oge", y, b.like(x, 2.5))
        lower = b.fsub(y, one)
        product = b.select(above, b.fmul(product, lower), product)
        y = b.select(above, lower, y)
    divisor = one
    for _ in range(2):  # up from below 1.5
        below = b.fcmp("olt", y, b.like(x, 1.5))
        divisor = b.select(below, b.fmul(divisor, y), divisor)
        y = b.select(below, b.fadd(y, one), y)
    t = b.fsub(y, b.like(x, 2.0))
    # x - 1 is exact near 1, where log(x) must not lose the digits of x
    near_one = b.op("and", b.fcmp("ogt", x, b.like(x, 0.5)), b.fcmp("olt", x, b.like(x, 1.5)))
    t = b.select(near_one, b.fsub(x, one), t)
    core = b.fmul(t, b.polynomial(t, _LGAMMA64))
    small = b.fadd(b.fsub(core, _log(b, divisor)), _log(b, product))
    inverse = b.fdiv(one, x)
    series = b.fmul(inverse, b.polynomial(b.fmul(inverse, inverse), _STIRLING))
    logarithm = _log(b, x)
    large = b.fmul(b.fsub(x, b.like(x, 0.5)), b.fsub(logarithm, one))
    large = b.fadd(large, b.fadd(series, b.like(x, 0.5 * math.log(2 * math.pi) - 0.5)))
    return b.select(b.fcmp("oge", x, b.like(x, 8.5)), large, small)


def _sin_pi(b: Builder, x: Value) -> Value:
    """|sin(pi x)|."""
    distance = _abs(b, b.fsub(x, _round(b, x)))  # 0 .. 1/2
    mirrored = b.fcmp("ogt", distance, b.like(x, 0.25))
    angle = b.select(mirrored, b.fsub(b.like(x, 0.5), distance), distance)
    sine, cosine = _sin_cos(b, b.fmul(angle, b.like(x, math.pi)), b.like(x, 0.0))
    return b.select(mirrored, cosine, sine)


def _lgamma(b: Builder, x: Value) -> Value:
    negative = b.fcmp("olt", x, b.like(x, 0.5))
    reflected = b.fsub(b.like(x, 1.0), x)
    positive = _lgamma_positive(b, b.select(negative, reflected, x))
    other = b.fsub(_log(b, b.fdiv(b.like(x, math.pi), _sin_pi(b, x))), positive)
    # close to zero, 1 - x loses x: there lgamma(x) = -log|x| - gamma x
    tiny = b.fcmp("olt", _abs(b, x), b.like(x, 2.0**-40))
    near = b.fsub(b.fneg(_log(b, _abs(b, x))), b.fmul(x, b.like(x, 0.5772156649015329)))
    result = b.select(tiny, near, b.select(negative, other, positive))
    pole = b.op("and", b.fcmp("ole", x, b.like(x, 0.0)), b.fcmp("oeq", x, b.intrinsic("floor", x)))
    return b.select(_either(b, pole, _is(b, _abs(b, x), _INF)), b.like(x, _INF), result)


def _digamma(b: Builder, x: Value) -> Value:
    one, zero = b.like(x, 1.0), b.like(x, 0.0)
    negative = b.fcmp("olt", x, zero)
    y = b.select(negative, b.fsub(one, x), x)
    shift = zero
    for _ in range(10):
        below = b.fcmp("olt", y, b.like(x, 10.0))
        shift = b.select(below, b.fsub(shift, b.fdiv(one, y)), shift)
        y = b.select(below, b.fadd(y, one), y)
    inverse = b.fdiv(one, y)
    square = b.fmul(inverse, inverse)
    series = b.fmul(square, b.polynomial(square, _DIGAMMA))
    positive = b.fadd(shift, b.fsub(b.fsub(_log(b, y), b.fmul(inverse, b.like(x, 0.5))), series))
    fraction = b.fsub(x, _round(b, x))
    angle = b.fmul(fraction, b.like(x, math.pi))
    reflected = b.fsub(positive, b.fdiv(b.like(x, math.pi), _tan(b, angle)))
    result = b.select(negative, reflected, positive)
    whole = b.fcmp("oeq", x, b.intrinsic("floor", x))
    result = b.select(b.op("and", negative, whole), b.like(x, math.nan), result)
    return b.select(_is(b, x, 0.0), _copysign(b, b.like(x, _INF), b.fneg(x)), result)


# ---------------------------------------------------------------------------------------------------------
# Powers and remainders
# ---------------------------------------------------------------------------------------------------------


def _log_twice(b: Builder, x: Value) -> tuple[Value, Value]:
    """log(x) of positive x to about 65 bits, as an unevaluated sum."""
    e, f = _split_log(b, x)
    divisor = b.fadd(f, b.like(x, 2.0))
    s = b.fdiv(f, divisor)
    divisor_low = b.fsub(f, b.fsub(divisor, b.like(x, 2.0)))
    rest = b.fsub(b.fma(b.fneg(s), divisor, f), b.fmul(s, divisor_low))
    s_low = b.fdiv(rest, divisor)
    z, z_low = _square_exact(b, s)
    z_low = b.fma(b.fmul(s, b.like(x, 2.0)), s_low, z_low)
    cube = b.fmul(z, s)
    cube_low = b.fadd(b.fma(z, s, b.fneg(cube)), b.fma(z_low, s, b.fmul(z, s_low)))
    third, third_low = 2.0 / 3.0, float.fromhex("0x1.5555555555555p-55")
    term = b.fmul(cube, b.like(x, third))
    term_low = b.fma(cube, b.like(x, third), b.fneg(term))
    term_low = b.fadd(term_low, b.fma(cube, b.like(x, third_low), b.fmul(cube_low, b.like(x, third))))
    tail = b.fmul(b.fmul(cube, z), b.polynomial(z, _LOG64_TAIL))
    # e ln2 + 2 s + term, largest first
    base = b.fmul(e, b.like(x, _LN2_HI64))  # exact
    double = b.fadd(s, s)
    high, lost = _two_sum(b, base, double)
    high, lost_too = _two_sum(b, high, term)
    low = b.fadd(b.fadd(lost, lost_too), b.fadd(b.fadd(s_low, s_low), b.fadd(term_low, tail)))
    ln2_low = b.fmul(e, b.like(x, _LN2_LO64))
    return _two_sum(b, high, b.fadd(ln2_low, low))


def _two_sum(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    total = b.fadd(x, y)
    back = b.fsub(total, x)
    return total, b.fadd(b.fsub(x, b.fsub(total, back)), b.fsub(y, back))


def _pow(b: Builder, x: Value, y: Value, precise: bool) -> Value:
    a = _abs(b, x)
    one, zero = b.like(x, 1.0), b.like(x, 0.0)
    ordinary = b.op("and", b.fcmp("ogt", a, zero), b.fcmp("olt", a, b.like(x, _INF)))
    ordinary = b.op("and", ordinary, b.fcmp("olt", _abs(b, y), b.like(x, 2.0**1000)))
    if precise:
        high, low = _log_twice(b, a)
        product = b.fmul(high, y)
        rest = b.fma(high, y, b.fneg(product))
        rest = b.fma(low, y, rest)
        usual = _exp_of_sum(b, product, b.select(b.fcmp("olt", _abs(b, rest), one), rest, zero))
    else:
        usual = _exp(b, b.fmul(_log(b, a), y))
    # zero or infinity on either side: the result is zero or infinity
    grows = b.op("xor", b.fcmp("ogt", a, one), b.fcmp("olt", y, zero))
    extreme = b.select(grows, b.like(x, _INF), zero)
    extreme = b.select(_is(b, a, 1.0), one, extreme)
    value = b.select(ordinary, usual, extreme)
    value = b.select(_either(b, b.fcmp("uno", x, x), b.fcmp("uno", y, y)), b.fadd(x, y), value)
    whole = b.fcmp("oeq", y, b.intrinsic("trunc", y))
    half = b.fmul(y, b.like(x, 0.5))
    odd = b.op("and", whole, b.fcmp("une", half, b.intrinsic("trunc", half)))
    odd = b.op("and", odd, b.fcmp("olt", _abs(b, y), b.like(x, _INF)))
    signed = b.icmp("slt", b.bitcast(x, "i64"), b.const("i64", x.lanes, 0))
    value = b.select(b.op("and", odd, signed), b.fneg(value), value)
    below = b.op("and", b.fcmp("olt", x, zero), b.fcmp("ogt", x, b.like(x, -_INF)))
    invalid = b.op("and", below, b.op("xor", whole, b.const("i1", x.lanes, True)))
    value = b.select(invalid, b.like(x, math.nan), value)
    return b.select(_either(b, _is(b, x, 1.0), _is(b, y, 0.0)), one, value)


def _fmod(b: Builder, x: Value, y: Value) -> Value:
    """The exact remainder with the sign of x."""
    one, zero = b.like(x, 1.0), b.like(x, 0.0)
    divisor = _abs(b, y)
    valid = b.op("and", b.fcmp("olt", _abs(b, x), b.like(x, _INF)), b.fcmp("ogt", divisor, zero))
    valid = b.op("and", valid, b.fcmp("olt", divisor, b.like(x, _INF)))
    divisor = b.select(valid, divisor, one)
    rest = b.select(valid, _abs(b, x), zero)
    # a subnormal divisor is scaled up: first the remainder by the scaled one, then that remainder scaled by the same
    tiny, digits = (2.0**-126, 24) if x.elem == "float" else (2.0**-1022, 53)
    subnormal = b.fcmp("olt", divisor, b.like(x, tiny))
    up = b.select(subnormal, b.like(x, 2.0**digits), one)
    down = b.select(subnormal, b.like(x, 2.0**-digits), one)
    scaled = b.fmul(divisor, up)
    rest = _remainder(b, rest, scaled)
    rest = b.fmul(_remainder(b, b.fmul(rest, up), scaled), down)
    larger = b.fcmp("olt", _abs(b, x), _abs(b, y))  # then x is the remainder
    result = b.select(larger, x, _copysign(b, rest, x))
    zero_or_infinite = _either(b, _is(b, y, 0.0), _is(b, _abs(b, x), _INF))
    result = b.select(zero_or_infinite, b.like(x, math.nan), result)
    return b.select(_either(b, b.fcmp("uno", x, x), b.fcmp("uno", y, y)), b.like(x, math.nan), result)


def _remainder(b: Builder, x: Value, divisor: Value) -> Value:
    """x mod divisor for nonnegative x and normal divisors, by subtracting multiples of it shifted up to x."""
    label, done = b.label("mod"), b.label("out")
    before = b.block
    b.line(f"br label %{label}")
    b.start_block(label)
    current = Value(b.fresh(), x.elem, x.lanes)
    place = len(b.out)
    b.out.append("")
    # while the quotient has more bits than a float holds exactly, use a divisor shifted up
    limit = 2.0**20 if x.elem == "float" else 2.0**50
    big = b.fcmp("ogt", b.fdiv(current, divisor), b.like(x, limit))
    step = b.select(big, _power_near(b, current, divisor, limit), divisor)
    count = b.intrinsic("trunc", b.fdiv(current, step))
    # huge numbers are scaled down, so that the product does not overflow
    large = b.fcmp("ogt", current, b.like(x, 2.0**96 if x.elem == "float" else 2.0**900))
    shrink = b.select(large, b.like(x, 2.0**-32), b.like(x, 1.0))
    grow = b.select(large, b.like(x, 2.0**32), b.like(x, 1.0))
    less = b.fmul(b.fma(b.fneg(count), b.fmul(step, shrink), b.fmul(current, shrink)), grow)
    less = b.select(b.fcmp("olt", less, b.like(x, 0.0)), b.fadd(less, step), less)
    following = b.select(b.fcmp("oge", less, step), b.fsub(less, step), less)
    more = _any(b, b.fcmp("oge", following, divisor))
    b.line(f"br i1 {more.name}, label %{label}, label %{done}")
    b.out[place] = f"{current.name} = phi {x.ty} [{x.name}, %{before}], [{following.name}, %{b.block}]"
    b.start_block(done)
    return following


def _power_near(b: Builder, x: Value, divisor: Value, limit: float) -> Value:
    """divisor times a power of two, such that x over it is a little below `limit`."""
    kind, bits, bias = ("i32", 23, 127) if x.elem == "float" else ("i64", 52, 1023)
    mask = b.const(kind, x.lanes, ((1 << (31 if kind == "i32" else 63)) - 1) ^ ((1 << bits) - 1))
    gap = b.op("sub", b.op("and", b.bitcast(x, kind), mask), b.op("and", b.bitcast(divisor, kind), mask))
    lowered = b.op("sub", gap, b.const(kind, x.lanes, (int(math.log2(limit)) - 2) << bits))
    half = b.op("and", b.op("ashr", lowered, b.const(kind, x.lanes, 1)), mask)
    rest = b.op("sub", lowered, half)
    for part in (half, rest):
        positive = b.icmp("sgt", part, b.const(kind, x.lanes, 0))
        part = b.select(positive, part, b.const(kind, x.lanes, 0))
        power = b.bitcast(b.op("add", part, b.const(kind, x.lanes, bias << bits)), x.elem)
        divisor = b.fmul(divisor, power)
    return divisor


def _any(b: Builder, mask: Value) -> Value:
    if mask.lanes == 1:
        return mask
    function = f"llvm.vector.reduce.or.v{mask.lanes}i1"
    b.declared.setdefault(function, f"declare i1 @{function}({mask.ty})")
    return b.emit(f"call i1 @{function}({mask.ty} {mask.name})", "i1", 1)


def _mod(b: Builder, x: Value, y: Value) -> Value:
    """The remainder with the sign of y."""
    r = _fmod(b, x, y)
    zero = b.like(x, 0.0)
    differs = b.op("xor", b.fcmp("olt", r, zero), b.fcmp("olt", y, zero))
    moved = b.select(differs, b.fadd(r, y), r)
    return b.select(_is(b, r, 0.0), _copysign(b, r, y), moved)


# ---------------------------------------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------------------------------------


def _reciprocal(b: Builder, x: Value) -> Value:
    return b.fdiv(b.like(x, 1.0), x)


def _sign(b: Builder, x: Value) -> Value:
    zero = b.like(x, 0.0)
    neither = b.op("fadd", x, zero)  # +0 for either zero, NaN for NaN
    negative = b.select(b.fcmp("olt", x, zero), b.like(x, -1.0), neither)
    return b.select(b.fcmp("ogt", x, zero), b.like(x, 1.0), negative)


_PLAIN: dict[str, Function] = {
    "abs": _abs,
    "neg": lambda b, x: b.fneg(x),
    "sqrt": _sqrt,
    "rsqrt": lambda b, x: _reciprocal(b, _sqrt(b, x)),
    "reciprocal": _reciprocal,
    "square": lambda b, x: b.op("fmul contract", x, x),
    "sign": _sign,
    "floor": lambda b, x: b.intrinsic("floor", x),
    "ceil": lambda b, x: b.intrinsic("ceil", x),
    "round": lambda b, x: b.intrinsic("roundeven", x),
    "trunc": lambda b, x: b.intrinsic("trunc", x),
    "isnan": lambda b, x: b.fcmp("uno", x, x),
    "isinf": lambda b, x: _is(b, _abs(b, x), _INF),
    "isfinite": lambda b, x: b.fcmp("olt", _abs(b, x), b.like(x, _INF)),
    "relu": lambda b, x: _at_least(b, x, 0.0),
}
_SINGLE: dict[str, Function] = {
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log2": _log2,
    "log1p": _log1p,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "tanh": _tanh32,
    "erf": _erf32,
    "erfc": _erfc32,
    "gelu_slope": _odd_by_table(6.1, _GELU_SLOPE_STEP, _GELU_SLOPE_TABLE, _gelu_slope),
    "normal_excess": _odd_by_table(5.6, _NORMAL_STEP, _NORMAL_TABLE, _normal_excess),
    "narrow_gelu_slope": _narrow_gelu_slope,
    "narrow_normal_share": _narrow_normal_share,
    "narrow_tanh_gelu_slope": _narrow_tanh_gelu_slope,
    "tanh_gelu_slope": _odd_by_table(5.38, _TANH_GELU_SLOPE_STEP, _TANH_GELU_SLOPE_TABLE, _tanh_gelu_slope),
    "tanh_normal_excess": _odd_by_table(5.08, _TANH_NORMAL_STEP, _TANH_NORMAL_TABLE, _tanh_normal_excess),
}
_DOUBLE: dict[str, Function] = {
    **_SINGLE,
    "tanh": _tanh64,
    "erf": _erf64,
    "erfc": _erfc,
    "gelu_slope": _gelu_slope,
    "normal_excess": _normal_excess,
    "tanh_gelu_slope": _tanh_gelu_slope,
    "tanh_normal_excess": _tanh_normal_excess,
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "asin": _asin,
    "acos": _acos,
    "atan": _atan,
    "lgamma": _lgamma,
    "digamma": _digamma,
}


def apply_unary(b: Builder, op: str, x: Value) -> Value:
    """A unary operation on float or double values."""
    if op in _PLAIN:
        return _PLAIN[op](b, x)
    if x.elem == "double":
        return b.outlined(op, [x], "double", lambda inner, args: _DOUBLE[op](inner, args[0]))
    if op in _SINGLE:
        return _SINGLE[op](b, x)

    def through_double(inner: Builder, args: list[Value]) -> Value:
        return inner.convert(
            "fptrunc", _DOUBLE[op](inner, inner.convert("fpext", args[0], "double")), "float"
        )

    return b.outlined(op, [x], "float", through_double)


_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
# A difference is not contracted: the product that it subtracts from may be rounded elsewhere, as in z - min(z) with
# z = x * x, whose least element would not be 0 but the product's rounding error, of either sign.
_ARITHMETIC = {"add": "fadd contract", "sub": "fsub", "mul": "fmul contract", "div": "fdiv"}


def apply_binary(b: Builder, op: str, x: Value, y: Value) -> Value:
    """A binary operation on float or double values."""
    if op in _ARITHMETIC:
        return b.op(_ARITHMETIC[op], x, y)
    if op in _COMPARE:
        return b.fcmp(_COMPARE[op], x, y)
    if op in ("max", "min"):
        if y.is_const and not x.is_const:
            x, y = y, x  # a constant first: then only y can be NaN
        return float_max(b, x, y) if op == "max" else float_min(b, x, y)
    if op == "floordiv":
        return b.intrinsic("floor", b.fdiv(x, y))
    if op in ("mod", "fmod"):
        function = _mod if op == "mod" else _fmod
        return b.outlined(op, [x, y], x.elem, lambda inner, args: function(inner, *args))
    return b.outlined(op, [x, y], x.elem, _POWER[op])


def _in_double(
    function: Callable[[Builder, Value, Value, bool], Value],
) -> Callable[[Builder, list[Value]], Value]:
    def body(b: Builder, args: list[Value]) -> Value:
        if args[0].elem == "double":
            return function(b, args[0], args[1], True)
        wide = [b.convert("fpext", a, "double") for a in args]
        return b.convert("fptrunc", function(b, wide[0], wide[1], False), "float")

    return body


_POWER = {"pow": _in_double(_pow), "atan2": _in_double(lambda b, y, x, precise: _atan2(b, y, x))}
