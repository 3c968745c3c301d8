//! Handles, integers, enumerations and structs of both libraries.
//!
//! The enumerations are plain 32-bit integers: a vendor may return a value that is not listed, and a Rust `enum` with an
//! unlisted value is undefined behaviour.
#![allow(non_camel_case_types, non_snake_case, reason = "the vendor's names")]

use super::manifest::{FieldDecl, StructDecl, TypeDecl, TypeKind};
use core::ffi::{c_char, c_void};

macro_rules! vendor_types {
    (
        $( handle $handle:ident; )*
        $( integer $integer:ident = $repr:ty; )*
        $( enumeration $enumeration:ident { $( $(#[$vmeta:meta])* $value:ident = $number:literal ),* $(,)? } )*
        $( overlay $overlay:ident { $( $(#[$mmeta:meta])* $member:ident: $mty:ty ),* $(,)? } )*
        $( $(#[$smeta:meta])* record $record:ident { $( $(#[$fmeta:meta])* $field:ident: $fty:ty ),* $(,)? } )*
    ) => {
        $(
            #[doc = concat!("The vendor's union `", stringify!($overlay), "`: what comes with it says which member counts.")]
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub union $overlay { $( $(#[$mmeta])* pub $member: $mty, )* }
        )*
        $( #[doc = concat!("The vendor's `", stringify!($handle), "`: an opaque pointer.")]
           pub type $handle = *mut c_void; )*
        $( #[doc = concat!("The vendor's `", stringify!($integer), "`.")]
           pub type $integer = $repr; )*
        $( #[doc = concat!("The vendor's `", stringify!($enumeration), "`.")]
           pub type $enumeration = i32;
           $( #[doc = concat!("`", stringify!($enumeration), "` ", stringify!($number), ".")]
              $(#[$vmeta])*
              pub const $value: $enumeration = $number; )* )*
        $(
            $(#[$smeta])*
            // No `Debug`: a handle in a log could be imported by anyone who reads it.
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $record { $( $(#[$fmeta])* pub $field: $fty, )* }

            // With size and offsets equal to the vendor's, a field that is not listed shows as a hole that is wider than
            // padding can be.
            const _: () = {
                let mut end = 0_usize;
                $(
                    let align = align_of::<$fty>();
                    assert!(core::mem::offset_of!($record, $field) == end.next_multiple_of(align));
                    end = core::mem::offset_of!($record, $field) + size_of::<$fty>();
                )*
                assert!(size_of::<$record>() == end.next_multiple_of(align_of::<$record>()));
            };
        )*

        pub(super) const TYPES: &[TypeDecl] = &[
            $( TypeDecl { name: stringify!($handle), kind: TypeKind::Handle, size: size_of::<$handle>() }, )*
            $( TypeDecl {
                name: stringify!($integer), kind: TypeKind::Integer(stringify!($repr)), size: size_of::<$integer>(),
            }, )*
            $( TypeDecl {
                name: stringify!($enumeration), kind: TypeKind::Enumeration, size: size_of::<$enumeration>(),
            }, )*
        ];

        pub(super) const ENUM_VALUES: &[(&str, i64)] = &[ $( $( (stringify!($value), $value as i64), )* )* ];

        /// The unions come last: their members overlap, so that the list above does not fit them.
        pub(super) const STRUCTS: &[StructDecl] = &[
            $( StructDecl {
                name: stringify!($record),
                size: size_of::<$record>(),
                align: align_of::<$record>(),
                fields: &[ $( FieldDecl {
                    name: stringify!($field),
                    ty: stringify!($fty),
                    offset: core::mem::offset_of!($record, $field),
                    size: size_of::<$fty>(),
                }, )* ],
            }, )*
            $( StructDecl {
                name: stringify!($overlay),
                size: size_of::<$overlay>(),
                align: align_of::<$overlay>(),
                fields: &[ $( FieldDecl {
                    name: stringify!($member),
                    ty: stringify!($mty),
                    offset: core::mem::offset_of!($overlay, $member),
                    size: size_of::<$mty>(),
                }, )* ],
            }, )*
        ];
    };
}

vendor_types! {
    handle aclrtContext;
    handle aclrtStream;
    handle aclrtEvent;
    handle aclrtDrvMemHandle;
    handle aclrtBinHandle;
    handle aclrtFuncHandle;
    handle HcclComm;

    integer aclError = i32;

    enumeration aclrtEventRecordedStatus {
        ACL_EVENT_RECORDED_STATUS_NOT_READY = 0,
        ACL_EVENT_RECORDED_STATUS_COMPLETE = 1,
    }
    enumeration aclrtMemMallocPolicy {
        ACL_MEM_MALLOC_HUGE_FIRST = 0,
        ACL_MEM_MALLOC_HUGE_ONLY = 1,
        ACL_MEM_MALLOC_NORMAL_ONLY = 2,
    }
    enumeration aclrtMemcpyKind {
        ACL_MEMCPY_HOST_TO_HOST = 0,
        ACL_MEMCPY_HOST_TO_DEVICE = 1,
        ACL_MEMCPY_DEVICE_TO_HOST = 2,
        ACL_MEMCPY_DEVICE_TO_DEVICE = 3,
    }
    enumeration aclrtReduceKind {
        ACL_RT_MEMCPY_SDMA_AUTOMATIC_SUM = 10,
    }
    enumeration aclDataType {
        ACL_INT32 = 3,
    }
    enumeration aclrtMemAttr {
        ACL_HBM_MEM_HUGE = 4,
        ACL_HBM_MEM_NORMAL = 5,
    }
    enumeration aclrtMemPgType {
        NORMAL_PAGE_TYPE = 0,
        HUGE_PAGE_TYPE = 1,
    }
    enumeration aclrtMemLocationType {
        ACL_MEM_LOCATION_TYPE_HOST = 0,
        ACL_MEM_LOCATION_TYPE_DEVICE = 1,
        ACL_MEM_LOCATION_TYPE_UNREGISTERED = 2,
    }
    enumeration aclrtMemAllocationType {
        ACL_MEM_ALLOCATION_TYPE_PINNED = 0,
    }
    enumeration aclrtMemHandleType {
        ACL_MEM_HANDLE_TYPE_NONE = 0,
    }
    enumeration aclrtMemSharedHandleType {
        ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT = 1,
        ACL_MEM_SHARE_HANDLE_TYPE_FABRIC = 2,
    }
    enumeration aclrtMemGranularityOptions {
        ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    }
    enumeration aclrtMemAccessFlags {
        ACL_RT_MEM_ACCESS_FLAGS_READ = 1,
        ACL_RT_MEM_ACCESS_FLAGS_READWRITE = 3,
    }
    enumeration aclrtBinaryLoadOptionType {
        ACL_RT_BINARY_LOAD_OPT_LAZY_LOAD = 1,
        ACL_RT_BINARY_LOAD_OPT_MAGIC = 2,
        ACL_RT_BINARY_LOAD_OPT_CPU_KERNEL_MODE = 3,
    }
    enumeration aclrtEngineType {
        ACL_RT_ENGINE_TYPE_AIC = 0,
        ACL_RT_ENGINE_TYPE_AIV = 1,
    }
    enumeration aclrtLaunchKernelAttrId {
        ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE = 1,
        ACL_RT_LAUNCH_KERNEL_ATTR_ENGINE_TYPE = 3,
        ACL_RT_LAUNCH_KERNEL_ATTR_BLOCKDIM_OFFSET = 4,
        ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT = 7,
        ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US = 8,
    }
    enumeration HcclResult {
        HCCL_SUCCESS = 0,
        HCCL_E_PARA = 1,
        HCCL_E_PTR = 2,
        HCCL_E_MEMORY = 3,
        HCCL_E_INTERNAL = 4,
        HCCL_E_NOT_SUPPORT = 5,
        HCCL_E_NOT_FOUND = 6,
        HCCL_E_UNAVAIL = 7,
        HCCL_E_SYSCALL = 8,
        HCCL_E_TIMEOUT = 9,
        HCCL_E_OPEN_FILE_FAILURE = 10,
        HCCL_E_TCP_CONNECT = 11,
        HCCL_E_ROCE_CONNECT = 12,
        HCCL_E_TCP_TRANSFER = 13,
        HCCL_E_ROCE_TRANSFER = 14,
        HCCL_E_RUNTIME = 15,
        HCCL_E_DRV = 16,
        HCCL_E_PROFILING = 17,
        HCCL_E_CCE = 18,
        HCCL_E_NETWORK = 19,
        HCCL_E_AGAIN = 20,
        HCCL_E_REMOTE = 21,
        HCCL_E_SUSPENDING = 22,
        HCCL_E_OPRETRY_FAIL = 23,
        HCCL_E_OOM = 24,
    }
    enumeration HcclDataType {
        HCCL_DATA_TYPE_INT8 = 0,
        HCCL_DATA_TYPE_INT16 = 1,
        HCCL_DATA_TYPE_INT32 = 2,
        HCCL_DATA_TYPE_FP16 = 3,
        HCCL_DATA_TYPE_FP32 = 4,
        HCCL_DATA_TYPE_INT64 = 5,
        HCCL_DATA_TYPE_UINT64 = 6,
        HCCL_DATA_TYPE_UINT8 = 7,
        HCCL_DATA_TYPE_UINT16 = 8,
        HCCL_DATA_TYPE_UINT32 = 9,
        HCCL_DATA_TYPE_FP64 = 10,
        HCCL_DATA_TYPE_BFP16 = 11,
    }
    enumeration HcclReduceOp {
        HCCL_REDUCE_SUM = 0,
        HCCL_REDUCE_PROD = 1,
        HCCL_REDUCE_MAX = 2,
        HCCL_REDUCE_MIN = 3,
    }

    overlay aclrtBinaryLoadOptionValue {
        /// `ACL_RT_BINARY_LOAD_OPT_LAZY_LOAD`.
        isLazyLoad: u32,
        /// `ACL_RT_BINARY_LOAD_OPT_MAGIC`: one of `ACL_RT_BINARY_MAGIC_ELF_…`.
        magic: u32,
        /// `ACL_RT_BINARY_LOAD_OPT_CPU_KERNEL_MODE`.
        cpuKernelMode: i32,
        /// Large enough for every value.
        rsv: [u32; 4],
    }
    overlay aclrtLaunchKernelAttrValue {
        /// `ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE`.
        schemMode: u8,
        /// `ACL_RT_LAUNCH_KERNEL_ATTR_ENGINE_TYPE`.
        engineType: aclrtEngineType,
        /// `ACL_RT_LAUNCH_KERNEL_ATTR_BLOCKDIM_OFFSET`.
        blockDimOffset: u32,
        /// `ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT`, in seconds.
        timeout: u16,
        /// `ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT_US`.
        timeoutUs: aclrtTimeoutUs,
        /// Large enough for every value.
        rsv: [u32; 4],
    }

    /// Where memory is. Whether `id` is a logical or a driver-visible id depends on the struct around it.
    record aclrtMemLocation {
        /// The device.
        id: u32,
        /// Host or device.
        r#type: aclrtMemLocationType,
    }
    /// What an address is.
    record aclrtPtrAttributes {
        /// Where it is; `type` says whether on a device.
        location: aclrtMemLocation,
        /// Bytes.
        pageSize: u32,
        /// 0.
        rsv: [u32; 4],
    }
    /// What kind of physical memory to allocate; `location.id` is a *logical* id.
    record aclrtPhysicalMemProp {
        /// Always `ACL_MEM_HANDLE_TYPE_NONE`.
        handleType: aclrtMemHandleType,
        /// Always `ACL_MEM_ALLOCATION_TYPE_PINNED`.
        allocationType: aclrtMemAllocationType,
        /// Page kind.
        memAttr: aclrtMemAttr,
        /// The device that has the memory.
        location: aclrtMemLocation,
        /// 0.
        reserve: u64,
    }
    /// Who may use a mapped range; `location.id` is a *driver-visible* id.
    record aclrtMemAccessDesc {
        /// Read, or read and write.
        flags: aclrtMemAccessFlags,
        /// The device that gets access.
        location: aclrtMemLocation,
        /// 0.
        rsv: [u8; 12],
    }
    /// A handle that other processes can import over the fabric.
    record aclrtMemFabricHandle {
        /// Opaque.
        data: [u8; 128],
    }
    /// How to load a kernel binary.
    record aclrtBinaryLoadOptions {
        /// Array of options.
        options: *mut aclrtBinaryLoadOption,
        /// Its length.
        numOpt: usize,
    }
    /// One option of a kernel binary.
    record aclrtBinaryLoadOption {
        /// Which option.
        r#type: aclrtBinaryLoadOptionType,
        /// Its value.
        value: aclrtBinaryLoadOptionValue,
    }
    /// A time in microseconds.
    record aclrtTimeoutUs {
        /// The low 32 bits.
        timeoutLow: u32,
        /// The high 32 bits.
        timeoutHigh: u32,
    }
    /// One attribute of a launch.
    record aclrtLaunchKernelAttr {
        /// Which attribute.
        id: aclrtLaunchKernelAttrId,
        /// Its value.
        value: aclrtLaunchKernelAttrValue,
    }
    /// How to launch a kernel. `TIMEOUT` and `TIMEOUT_US` exclude each other.
    record aclrtLaunchKernelCfg {
        /// Array of attributes.
        attrs: *mut aclrtLaunchKernelAttr,
        /// Its length.
        numAttrs: usize,
    }
    /// A part of the host's argument block that the runtime copies to the device. We pass none.
    record aclrtPlaceHolderInfo {
        /// Where in the block the device address of the copy is written.
        addrOffset: u32,
        /// Where in the block the data starts.
        dataOffset: u32,
    }
    /// How rank 0 can be reached; opaque.
    record HcclRootInfo {
        /// Opaque.
        internal: [c_char; 4108],
    }
}
