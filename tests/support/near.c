#include "tests/support/near.h"

#include <math.h>

bool is_near(double got, double wanted, gs_near within) {
    if (!isfinite(got) || !isfinite(wanted))
        return within.nonfinite && ((isnan(got) && isnan(wanted)) || got == wanted);
    return fabs(got - wanted) <= within.absolute + within.relative * fabs(wanted);
}

gs_status check_near(const char *what, double got, double wanted, gs_near within) {
    if (is_near(got, wanted, within)) return gs_ok();
    return gs_error(GS_DATA_LOSS, "%s is %.9g, not within %g + %g·|x| of %.9g", what, got,
                    within.absolute, within.relative, wanted);
}

gs_status check_near_fp32(const char *what, const float *got, const float *wanted, size_t count,
                          gs_near within) {
    for (size_t i = 0; i < count; i++) {
        if (is_near((double)got[i], (double)wanted[i], within)) continue;
        return gs_error(GS_DATA_LOSS, "%s[%zu] is %.9g, not within %g + %g·|x| of %.9g", what, i,
                        (double)got[i], within.absolute, within.relative, (double)wanted[i]);
    }
    return gs_ok();
}

double norm_distance(const float *got, const float *wanted, size_t count) {
    double apart = 0.0, norm = 0.0;
    for (size_t i = 0; i < count; i++) {
        double difference = (double)got[i] - (double)wanted[i];
        apart += difference * difference;
        norm += (double)wanted[i] * (double)wanted[i];
    }
    return isfinite(apart) ? sqrt(apart / fmax(norm, 1e-30)) : (double)INFINITY;
}
