#include "cost/clock.h"
