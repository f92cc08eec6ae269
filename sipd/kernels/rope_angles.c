/* rope_angles: cosines and sines of position x frequency, without libm, the same on every machine.
 *
 * The angle is rounded to f32 as the reference implementations do; then reduced by pi/2 in three parts and evaluated in
 * f64 by the polynomials of fdlibm's k_cos and k_sin (Sun Microsystems 1993: coefficients), and rounded to f32 once.
 */
#include "rope_angles.h"

static double kernel_sin(double x) {
  const double z = x * x;
  double r = 1.58969099521155010221e-10;
  r = r * z + -2.50507602534068634195e-08;
  r = r * z + 2.75573137070700676789e-06;
  r = r * z + -1.98412698298579493134e-04;
  r = r * z + 8.33333333332248946124e-03;
  r = r * z + -1.66666666666666324348e-01;
  return x + x * z * r;
}

static double kernel_cos(double x) {
  const double z = x * x;
  double r = -1.13596475577881948265e-11;
  r = r * z + 2.08757232129817482790e-09;
  r = r * z + -2.75573143513906633035e-07;
  r = r * z + 2.48015872894767294178e-05;
  r = r * z + -1.38888888888741095749e-03;
  r = r * z + 4.16666666666666019037e-02;
  return (1.0 - 0.5 * z) + z * z * r;
}

void sipd_rope_angles(int32_t position, const float *inverse_frequencies, int32_t n, float *cos_sin) {
  const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
  for (int i = 0; i < n; i++) {
    const double a = (double)((float)position * inverse_frequencies[i]);
    const double turns = (a * 6.36619772367581382433e-01 + magic) - magic;
    double r = a - turns * 1.57079632673412561417e+00;
    r = r - turns * 6.07710050630396597660e-11;
    r = r - turns * 2.02226624879595063154e-21;
    const double s = kernel_sin(r), c = kernel_cos(r);
    switch ((int64_t)turns & 3) {
      case 0:
        cos_sin[i] = (float)c;
        cos_sin[n + i] = (float)s;
        break;
      case 1:
        cos_sin[i] = (float)-s;
        cos_sin[n + i] = (float)c;
        break;
      case 2:
        cos_sin[i] = (float)-c;
        cos_sin[n + i] = (float)-s;
        break;
      default:
        cos_sin[i] = (float)s;
        cos_sin[n + i] = (float)-c;
        break;
    }
  }
}
