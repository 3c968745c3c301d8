//! Orchestrations and kernels that were compiled to shared objects.

pub(crate) mod lane;
