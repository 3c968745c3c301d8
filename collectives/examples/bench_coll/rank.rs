//! One rank of a group in each process of a benchmark, made when it first plays.

use crate::dirty;
use collectives::{Collectives, Op, Options, WindowTensor};
use comm_context::comm::{CommError, Timeout};
use comm_sim::{Prepared, SimComm};

pub(crate) struct Rank {
    prepared: Prepared,
    len: usize,
    made: Option<Made>,
}

/// Lives to the end of its process.
struct Made {
    group: &'static Collectives<'static>,
    plain: Vec<f32>,
    tensor: WindowTensor<'static, f32>,
}

fn must<T, E: std::fmt::Display>(made: Result<T, E>) -> T {
    made.unwrap_or_else(|error| panic!("{error}"))
}

impl Rank {
    pub(crate) fn new(ranks: usize, bytes: usize) -> Result<Self, CommError> {
        Ok(Self { prepared: SimComm::prepare_group(ranks as u32)?, len: bytes / 4, made: None })
    }

    fn made(&mut self, me: usize) -> &mut Made {
        let (prepared, len) = (&self.prepared, self.len);
        self.made.get_or_insert_with(|| {
            let comm = Box::leak(Box::new(must(SimComm::join(prepared, me as u32, Timeout::DEFAULT))));
            let group = must(Collectives::new(&*comm, Options::new().pool(4 * len + 4096)));
            let group: &'static Collectives<'static> = Box::leak(Box::new(group));
            Made { group, plain: vec![0.0; len], tensor: must(group.alloc(len)) }
        })
    }

    pub(crate) fn staged(&mut self, me: usize, rounds: u64) {
        let made = self.made(me);
        for round in 0..rounds {
            dirty::write(&mut made.plain, round);
            must(made.group.all_reduce(&mut made.plain, Op::Sum));
            dirty::read(&made.plain);
        }
    }

    pub(crate) fn window(&mut self, me: usize, rounds: u64) {
        let made = self.made(me);
        for round in 0..rounds {
            dirty::write(must(made.tensor.as_mut_slice()), round);
            must(made.group.all_reduce(&mut made.tensor, Op::Sum));
            dirty::read(must(made.tensor.as_slice()));
        }
    }

    pub(crate) fn barriers(&mut self, me: usize, rounds: u64) {
        let made = self.made(me);
        for _ in 0..rounds {
            must(made.group.barrier());
        }
    }
}
