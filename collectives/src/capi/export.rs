//! The symbols of `comm_coll.h`.

/// Exports the C API of `comm_coll.h`, on communicators of the `comm.h` that the library exports too.
#[macro_export]
macro_rules! export_coll_c_api {
    () => {
        /// The symbols of `comm_coll.h`.
        ///
        /// # Safety
        /// Exported under their C names, which no other Rust code of this library defines. Each passes its arguments on to the function
        /// of the same name, under the contract of `comm_coll.h`.
        #[allow(
            unsafe_code,
            missing_docs,
            unreachable_pub,
            clippy::missing_safety_doc,
            clippy::too_many_arguments
        )]
        mod coll_c_api {
            use core::ffi::{c_int, c_void};
            use $crate::capi;

            type Handle = *mut c_void;

            fn number(handle: Handle) -> u64 {
                handle as u64
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn comm_coll_create(comm: Handle) -> Handle {
                capi::create(number(comm)) as Handle
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_coll_create_over(
                comm: Handle,
                rank_ids: *const u32,
                rank_count: usize,
                options: *const capi::CommCollOptions,
            ) -> Handle {
                // SAFETY: the caller keeps to comm_coll.h.
                (unsafe { capi::create_over(number(comm), rank_ids, rank_count, options) }) as Handle
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_coll_split(
                coll: Handle,
                color: c_int,
                key: i64,
                coll_out: *mut Handle,
            ) -> c_int {
                // SAFETY: the caller keeps to comm_coll.h; a handle has the size of a number.
                unsafe { capi::split(number(coll), color, key, coll_out.cast()) }
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn comm_coll_destroy(coll: Handle) -> c_int {
                capi::destroy(number(coll))
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_coll_rank(coll: Handle, rank_out: *mut c_int) -> c_int {
                // SAFETY: the caller keeps to comm_coll.h.
                unsafe { capi::rank(number(coll), rank_out) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_coll_size(coll: Handle, size_out: *mut c_int) -> c_int {
                // SAFETY: the caller keeps to comm_coll.h.
                unsafe { capi::size(number(coll), size_out) }
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn comm_coll_alloc(coll: Handle, bytes: usize) -> *mut c_void {
                capi::alloc(number(coll), bytes)
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_coll_free(coll: Handle, memory: *mut c_void) -> c_int {
                // SAFETY: the caller keeps to comm_coll.h.
                unsafe { capi::free(number(coll), memory) }
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn comm_coll_wait(coll: Handle, request: u64) -> c_int {
                capi::wait(number(coll), request)
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn comm_coll_test(
                coll: Handle,
                request: u64,
                done_out: *mut c_int,
            ) -> c_int {
                // SAFETY: the caller keeps to comm_coll.h.
                unsafe { capi::test(number(coll), request, done_out) }
            }

            $crate::export_coll_calls! {
                barrier: fn comm_coll_barrier(), fn comm_coll_start_barrier();
                all_reduce: fn comm_coll_all_reduce(), fn comm_coll_start_all_reduce(),
                    input: *const c_void, output: *mut c_void, count: usize, dtype: c_int, op: c_int;
                all_gather: fn comm_coll_all_gather(), fn comm_coll_start_all_gather(),
                    input: *const c_void, output: *mut c_void, count: usize, dtype: c_int;
                all_gather_v: fn comm_coll_all_gather_v(), fn comm_coll_start_all_gather_v(),
                    input: *const c_void, output: *mut c_void, counts: *const usize, dtype: c_int;
                reduce_scatter: fn comm_coll_reduce_scatter(), fn comm_coll_start_reduce_scatter(),
                    input: *const c_void, output: *mut c_void, count: usize, dtype: c_int, op: c_int;
                reduce_scatter_v: fn comm_coll_reduce_scatter_v(), fn comm_coll_start_reduce_scatter_v(),
                    input: *const c_void, output: *mut c_void, counts: *const usize, dtype: c_int, op: c_int;
                broadcast: fn comm_coll_broadcast(), fn comm_coll_start_broadcast(),
                    buffer: *mut c_void, count: usize, dtype: c_int, root: c_int;
                reduce: fn comm_coll_reduce(), fn comm_coll_start_reduce(),
                    input: *const c_void, output: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int;
                all_to_all: fn comm_coll_all_to_all(), fn comm_coll_start_all_to_all(),
                    input: *const c_void, output: *mut c_void, count: usize, dtype: c_int;
                all_to_all_v: fn comm_coll_all_to_all_v(), fn comm_coll_start_all_to_all_v(),
                    input: *const c_void, send_counts: *const usize, output: *mut c_void,
                    receive_counts: *const usize, dtype: c_int;
                gather: fn comm_coll_gather(), fn comm_coll_start_gather(),
                    input: *const c_void, output: *mut c_void, count: usize, dtype: c_int, root: c_int;
                scatter: fn comm_coll_scatter(), fn comm_coll_start_scatter(),
                    input: *const c_void, output: *mut c_void, count: usize, dtype: c_int, root: c_int;
                send: fn comm_coll_send(), fn comm_coll_start_send(),
                    buffer: *const c_void, count: usize, dtype: c_int, to: c_int, tag: u32;
                recv: fn comm_coll_recv(), fn comm_coll_start_recv(),
                    buffer: *mut c_void, count: usize, dtype: c_int, from: c_int, tag: u32;
            }
        }
    };
}

/// A call and its started twin, which takes where the request goes as its last argument.
#[doc(hidden)]
#[macro_export]
macro_rules! export_coll_calls {
    ($($call:ident: fn $now:ident(), fn $started:ident() $(, $argument:ident: $type:ty)*;)+) => { $(
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        pub unsafe extern "C" fn $now(coll: Handle $(, $argument: $type)*) -> c_int {
            // SAFETY: the caller keeps to comm_coll.h.
            unsafe { capi::$call(number(coll) $(, $argument)*, capi::When::Now) }
        }

        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        pub unsafe extern "C" fn $started(coll: Handle $(, $argument: $type)*, request_out: *mut u64) -> c_int {
            // SAFETY: the caller keeps to comm_coll.h.
            unsafe { capi::$call(number(coll) $(, $argument)*, capi::When::Started(request_out)) }
        }
    )+ };
}
