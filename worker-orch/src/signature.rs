//! What a program takes, so that a submit that does not fit is refused before anything runs.

use crate::args::{Access, Args};
use comm_context::abi::DType;
use worker_errors::{ErrorCode, Failure};

/// The tensors of a program, in order, and how many scalars follow them. Set with
/// [`Worker::set_signature`](crate::Worker::set_signature).
///
/// A kernel takes what it finds at its argument's place: with one scalar where it reads five it follows an address that nobody gave it,
/// and its process dies. With a signature the submit is refused, and says which argument does not fit.
///
/// ```
/// use worker_orch::{Access, DType, Signature};
///
/// let scale = Signature::new()
///     .tensor(Access::Input, DType::Float32)
///     .tensor_of(Access::Output, DType::Float32, 256)
///     .scalars(1);
/// # let _ = scale;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    tensors: Vec<Parameter>,
    scalars: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameter {
    access: Access,
    dtype: DType,
    /// The least number of elements.
    count: u64,
}

impl Signature {
    /// A program that takes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more tensor, of any number of elements. A task may say more about it than the program does, `InOut` for an
    /// [`Access::Input`], and [`Access::NoDependency`], but not less.
    pub fn tensor(self, access: Access, dtype: DType) -> Self {
        self.tensor_of(access, dtype, 0)
    }

    /// One more tensor, of `count` elements or more.
    pub fn tensor_of(mut self, access: Access, dtype: DType, count: u64) -> Self {
        self.tensors.push(Parameter { access, dtype, count });
        self
    }

    /// How many scalars follow the tensors; none unless this is called.
    pub fn scalars(mut self, count: usize) -> Self {
        self.scalars = count;
        self
    }

    /// Refuses arguments that do not fit. `program` is its name.
    pub(crate) fn check(&self, program: &str, args: &Args) -> Result<(), Failure> {
        let refused = |text: String| {
            let text =
                format!("{text}; pass what its signature says, or change that with Worker::set_signature");
            Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"))
        };
        let (tensors, scalars) = (args.tensors().len(), args.scalars().len());
        if (tensors, scalars) != (self.tensors.len(), self.scalars) {
            return refused(format!(
                "`{program}` takes {} tensors and {} scalars, and the task has {tensors} and {scalars}",
                self.tensors.len(),
                self.scalars
            ));
        }
        for (index, ((tensor, access), wanted)) in args.tensors_by_access().zip(&self.tensors).enumerate() {
            match tensor.dtype() {
                Ok(dtype) if dtype == wanted.dtype => {}
                dtype => {
                    let given = dtype.map_or_else(|error| error.to_string(), |dtype| format!("{dtype:?}"));
                    return refused(format!(
                        "tensor {index} of `{program}` has elements of {:?}, and the task's are {given}",
                        wanted.dtype
                    ));
                }
            }
            if !includes(access, wanted.access) {
                return refused(format!(
                    "`{program}` uses tensor {index} as {:?}, and the task declares it as {access:?}, so later tasks would not wait for it",
                    wanted.access
                ));
            }
            if tensor.extent < wanted.count {
                return refused(format!(
                    "tensor {index} of `{program}` has {} elements or more, and the task's has {}",
                    wanted.count, tensor.extent
                ));
            }
        }
        Ok(())
    }
}

/// Whether a task that says `given` of a tensor may be one of a program that does `wanted` with it.
fn includes(given: Access, wanted: Access) -> bool {
    match (given, wanted) {
        (Access::NoDependency | Access::InOut, _) | (_, Access::NoDependency) => true,
        (Access::OutputExisting, Access::Output) => true,
        (given, wanted) => given == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat_tensor;
    use comm_context::abi::DeviceAddr;

    fn args(access: Access, dtype: DType, count: usize) -> Args {
        Args::new().tensor(&flat_tensor(DeviceAddr(0x1000), dtype, count).unwrap(), access).scalar(1)
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_argument() {
        let wanted = Signature::new().tensor_of(Access::Output, DType::Float32, 8).scalars(1);
        let refused = |args: Args| wanted.check("p", &args).unwrap_err().to_string();
        for access in [Access::Output, Access::OutputExisting, Access::InOut, Access::NoDependency] {
            wanted.check("p", &args(access, DType::Float32, 8)).unwrap();
        }
        assert!(refused(args(Access::Output, DType::Float32, 8).scalar(2)).contains("1 and 2"));
        assert!(refused(Args::new()).contains("takes 1 tensors and 1 scalars"));
        assert!(refused(args(Access::Output, DType::Int32, 8)).contains("tensor 0 of `p`"));
        assert!(refused(args(Access::Input, DType::Float32, 8)).contains("declares it as Input"));
        assert!(refused(args(Access::Output, DType::Float32, 7)).contains("8 elements or more"));
    }

    #[test]
    fn a_task_may_say_more_than_the_program_does_but_not_less() {
        use Access::{InOut, Input, NoDependency, Output, OutputExisting};
        for (given, wanted, fits) in [
            (InOut, Input, true),
            (InOut, OutputExisting, true),
            (Input, NoDependency, true),
            (OutputExisting, Output, true),
            (Input, InOut, false),
            (Input, Output, false),
            (Output, InOut, false),
            (Output, OutputExisting, false),
            (OutputExisting, Input, false),
        ] {
            assert_eq!(includes(given, wanted), fits, "{given:?} for {wanted:?}");
        }
    }
}
