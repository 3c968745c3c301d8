/*
 * What scale does, later: a host that has to share its processors launches the next kernel before this one has ended, too.
 */
#define TURNS 50000000
#include "scale.cpp"
