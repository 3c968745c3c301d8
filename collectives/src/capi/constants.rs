//! The numbers of `comm_coll.h`, under their names there.

use crate::element::{DType, Op};
use crate::options::Options;
use core::ffi::c_int;

pub(super) const COMM_COLL_FLOAT64: c_int = 32;
pub(super) const COMM_COLL_BOOL: c_int = 33;
pub(super) const COMM_COLL_SUM: c_int = 0;
pub(super) const COMM_COLL_PROD: c_int = 1;
pub(super) const COMM_COLL_MAX: c_int = 2;
pub(super) const COMM_COLL_MIN: c_int = 3;
pub(super) const COMM_COLL_AVG: c_int = 4;
pub(super) const COMM_COLL_BIT_AND: c_int = 5;
pub(super) const COMM_COLL_BIT_OR: c_int = 6;
pub(super) const COMM_COLL_BIT_XOR: c_int = 7;
pub(super) const COMM_COLL_LOGICAL_AND: c_int = 8;
pub(super) const COMM_COLL_LOGICAL_OR: c_int = 9;
pub(super) const COMM_COLL_LOGICAL_XOR: c_int = 10;
pub(super) const COMM_COLL_PROGRESS_THREAD: u32 = 1;
const COMM_COLL_POOL: usize = 4194304;

const _: () = {
    assert!(COMM_COLL_FLOAT64 == DType::F64 as c_int && COMM_COLL_BOOL == DType::Bool as c_int);
    assert!(COMM_COLL_SUM == Op::Sum as c_int && COMM_COLL_PROD == Op::Prod as c_int);
    assert!(COMM_COLL_MAX == Op::Max as c_int && COMM_COLL_MIN == Op::Min as c_int);
    assert!(COMM_COLL_AVG == Op::Avg as c_int && COMM_COLL_POOL == Options::POOL);
    assert!(COMM_COLL_BIT_AND == Op::BitAnd as c_int && COMM_COLL_BIT_OR == Op::BitOr as c_int);
    assert!(COMM_COLL_BIT_XOR == Op::BitXor as c_int && COMM_COLL_LOGICAL_AND == Op::LogicalAnd as c_int);
    assert!(
        COMM_COLL_LOGICAL_OR == Op::LogicalOr as c_int && COMM_COLL_LOGICAL_XOR == Op::LogicalXor as c_int
    );
};
