//! What the functions of an orchestration work on: a graph of this process, or one of a device.

use crate::args::TaskArgs;
use crate::error::RuntimeError;
use crate::graph::Graph;
use crate::limits::{FrontEnd, ScopeMode};
use crate::signals::Domain;
use crate::task::{Kernels, Site, Submitted, TaskId};
use crate::tensor::Create;
use comm_context::abi::{DeviceAddr, TensorDesc};

/// A graph while an orchestration in an object builds it; see [`Graph`] for what the calls do.
pub(crate) trait Builder {
    fn front_end(&self) -> FrontEnd;
    fn cluster_count(&self) -> usize;
    fn is_failed(&self) -> bool;
    /// The code of what failed; 0 for nothing.
    fn failure_code(&self) -> i32;
    /// The place that the next calls are at.
    fn set_site(&mut self, site: Option<Site>);
    fn submit(&mut self, kernels: Kernels, args: &TaskArgs) -> Result<Submitted, RuntimeError>;
    fn submit_dummy(&mut self, args: &TaskArgs) -> Result<Submitted, RuntimeError>;
    fn allocate(&mut self, tensors: &[Create]) -> Result<Submitted, RuntimeError>;
    fn scope_begin(&mut self, mode: ScopeMode) -> Result<(), RuntimeError>;
    fn scope_end(&mut self) -> Result<(), RuntimeError>;
    fn publish(&mut self, task: TaskId) -> Result<(), RuntimeError>;
    fn add_dependency(&mut self, after: TaskId, before: TaskId) -> Result<(), RuntimeError>;
    fn get_element(&mut self, tensor: &TensorDesc, index: &[u32]) -> Result<u64, RuntimeError>;
    fn set_element(&mut self, tensor: &TensorDesc, index: &[u32], bits: u64) -> Result<(), RuntimeError>;
    fn domain(&self, context: DeviceAddr) -> Result<Domain, RuntimeError>;
}

impl Builder for Graph<'_> {
    fn front_end(&self) -> FrontEnd {
        Graph::front_end(self)
    }

    fn cluster_count(&self) -> usize {
        Graph::cluster_count(self)
    }

    fn is_failed(&self) -> bool {
        Graph::is_failed(self)
    }

    fn failure_code(&self) -> i32 {
        Graph::failure_code(self)
    }

    fn set_site(&mut self, site: Option<Site>) {
        Graph::set_site(self, site);
    }

    fn submit(&mut self, kernels: Kernels, args: &TaskArgs) -> Result<Submitted, RuntimeError> {
        Graph::submit(self, kernels, args)
    }

    fn submit_dummy(&mut self, args: &TaskArgs) -> Result<Submitted, RuntimeError> {
        Graph::submit_dummy(self, args)
    }

    fn allocate(&mut self, tensors: &[Create]) -> Result<Submitted, RuntimeError> {
        Graph::allocate(self, tensors)
    }

    fn scope_begin(&mut self, mode: ScopeMode) -> Result<(), RuntimeError> {
        Graph::scope_begin(self, mode)
    }

    fn scope_end(&mut self) -> Result<(), RuntimeError> {
        Graph::scope_end(self)
    }

    fn publish(&mut self, task: TaskId) -> Result<(), RuntimeError> {
        Graph::publish(self, task)
    }

    fn add_dependency(&mut self, after: TaskId, before: TaskId) -> Result<(), RuntimeError> {
        Graph::add_dependency(self, after, before)
    }

    fn get_element(&mut self, tensor: &TensorDesc, index: &[u32]) -> Result<u64, RuntimeError> {
        Graph::get_element(self, tensor, index)
    }

    fn set_element(&mut self, tensor: &TensorDesc, index: &[u32], bits: u64) -> Result<(), RuntimeError> {
        Graph::set_element(self, tensor, index, bits)
    }

    fn domain(&self, context: DeviceAddr) -> Result<Domain, RuntimeError> {
        Graph::domain(self, context)
    }
}

#[cfg(feature = "ascend")]
pub(super) mod on_device {
    use super::*;
    use crate::error::ErrorKind;
    use crate::on_device::{DeviceGraph, OnDeviceError};

    /// A graph of a device, and the first error that only it has.
    pub(crate) struct DeviceBuilder<'b, 'g> {
        pub(crate) graph: &'b mut DeviceGraph<'g>,
        pub(crate) error: Option<OnDeviceError>,
    }

    impl DeviceBuilder<'_, '_> {
        /// The error for the orchestration; the caller of it gets the whole.
        fn keep<T>(&mut self, done: Result<T, OnDeviceError>) -> Result<T, RuntimeError> {
            done.map_err(|error| match error {
                OnDeviceError::Graph(error) => error,
                other => {
                    let text = other.to_string();
                    self.error.get_or_insert(other);
                    ErrorKind::Orchestration(text).into()
                }
            })
        }
    }

    impl Builder for DeviceBuilder<'_, '_> {
        fn front_end(&self) -> FrontEnd {
            FrontEnd::Prebuilt
        }

        fn cluster_count(&self) -> usize {
            self.graph.cluster_count()
        }

        fn is_failed(&self) -> bool {
            self.error.is_some()
        }

        fn failure_code(&self) -> i32 {
            // What only a device has is a failure of the system.
            if self.is_failed() { 100 } else { 0 }
        }

        fn set_site(&mut self, site: Option<Site>) {
            self.graph.set_site(site);
        }

        fn submit(&mut self, kernels: Kernels, args: &TaskArgs) -> Result<Submitted, RuntimeError> {
            let done = self.graph.submit(kernels, args);
            self.keep(done)
        }

        fn submit_dummy(&mut self, args: &TaskArgs) -> Result<Submitted, RuntimeError> {
            let done = self.graph.submit_dummy(args);
            self.keep(done)
        }

        fn allocate(&mut self, tensors: &[Create]) -> Result<Submitted, RuntimeError> {
            let done = self.graph.allocate(tensors);
            self.keep(done)
        }

        fn scope_begin(&mut self, mode: ScopeMode) -> Result<(), RuntimeError> {
            let done = self.graph.scope_begin(mode);
            self.keep(done)
        }

        fn scope_end(&mut self) -> Result<(), RuntimeError> {
            let done = self.graph.scope_end();
            self.keep(done)
        }

        /// Tasks of a prebuilt graph are published by themselves.
        fn publish(&mut self, _: TaskId) -> Result<(), RuntimeError> {
            Ok(())
        }

        fn add_dependency(&mut self, after: TaskId, before: TaskId) -> Result<(), RuntimeError> {
            let done = self.graph.add_dependency(after, before);
            self.keep(done)
        }

        fn get_element(&mut self, tensor: &TensorDesc, index: &[u32]) -> Result<u64, RuntimeError> {
            let done = self.graph.get_element(tensor, index);
            self.keep(done)
        }

        fn set_element(&mut self, tensor: &TensorDesc, index: &[u32], bits: u64) -> Result<(), RuntimeError> {
            let done = self.graph.set_element(tensor, index, bits);
            self.keep(done)
        }

        fn domain(&self, context: DeviceAddr) -> Result<Domain, RuntimeError> {
            self.graph.domain(context)
        }
    }
}
