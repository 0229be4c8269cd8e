#include "cost/work.h"
