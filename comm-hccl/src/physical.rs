//! Physical memory, how it is shared, and how it is mapped.
//!
//! # Safety
//! The unsafe blocks are vendor calls; each says why its arguments are valid.
#![allow(unsafe_code)]

use crate::device::{Device, Handle, VendorPid};
use crate::error::{DeviceError, acl_optional, acl_present};
use crate::memory::{as_ptr, check_size};
use crate::sys::*;
use crate::window::Importers;
use comm_context::abi::DeviceAddr;
use std::fmt;

/// The pages behind physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// What Fabric handles need.
    Huge,
    /// What 64-bit handles need.
    Normal,
}

impl Pages {
    fn attribute(self) -> aclrtMemAttr {
        match self {
            Self::Huge => ACL_HBM_MEM_HUGE,
            Self::Normal => ACL_HBM_MEM_NORMAL,
        }
    }

    fn reserve_flag(self) -> u64 {
        match self {
            Self::Huge => HUGE_PAGE_TYPE as u64,
            Self::Normal => NORMAL_PAGE_TYPE as u64,
        }
    }
}

/// A handle that every allowed process can import over the fabric. Its `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FabricHandle(pub(crate) [u8; 128]);

/// A 64-bit handle that every allowed process on the same host can import. Its `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShareableHandle(pub(crate) u64);

impl fmt::Debug for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FabricHandle(..)")
    }
}

impl fmt::Debug for ShareableHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShareableHandle(..)")
    }
}

/// Physical device memory, own or a peer's.
#[derive(Debug)]
pub struct PhysicalMemory {
    device: Device,
    /// `None` once released.
    handle: Option<Handle>,
    size: usize,
    pages: Pages,
}

impl PhysicalMemory {
    /// Allocates at least `size` bytes, rounded up to the vendor's unit.
    pub fn allocate(device: &Device, size: usize, pages: Pages) -> Result<Self, DeviceError> {
        check_size(size)?;
        acl_present!(device.vendor(), aclrtFreePhysical)?;
        let mut prop = aclrtPhysicalMemProp {
            handleType: ACL_MEM_HANDLE_TYPE_NONE,
            allocationType: ACL_MEM_ALLOCATION_TYPE_PINNED,
            memAttr: pages.attribute(),
            // A *logical* id belongs here, unlike in aclrtMemAccessDesc.
            location: aclrtMemLocation { id: device.logical().0, r#type: ACL_MEM_LOCATION_TYPE_DEVICE },
            reserve: 0,
        };
        let mut unit = 0;
        // SAFETY: `prop` and `unit` are valid for the call.
        unsafe {
            acl_optional!(
                device.vendor(),
                aclrtMemGetAllocationGranularity(&mut prop, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &mut unit)
            )
        }?;
        let unexpected = DeviceError::Unexpected {
            function: "aclrtMemGetAllocationGranularity",
            what: "a granularity that cannot be used",
        };
        let size = (unit != 0).then(|| size.checked_next_multiple_of(unit)).flatten().ok_or(unexpected)?;
        let mut handle: aclrtDrvMemHandle = std::ptr::null_mut();
        // SAFETY: `handle` is a valid place, `prop` is valid for the call, flags must be 0.
        unsafe { acl_optional!(device.vendor(), aclrtMallocPhysical(&mut handle, size, &prop, 0)) }?;
        Ok(Self { device: device.clone(), handle: Some(Handle(handle)), size, pages })
    }

    /// Imports a peer's Fabric handle.
    pub fn import_fabric(device: &Device, handle: &FabricHandle, size: usize) -> Result<Self, DeviceError> {
        check_size(size)?;
        acl_present!(device.vendor(), aclrtFreePhysical)?;
        let mut shareable = aclrtMemFabricHandle { data: handle.0 };
        let mut imported: aclrtDrvMemHandle = std::ptr::null_mut();
        // SAFETY: `shareable` is a struct of the type that the share type asks for; `imported` is a valid
        // place.
        unsafe {
            acl_optional!(
                device.vendor(),
                aclrtMemImportFromShareableHandleV2(
                    (&raw mut shareable).cast(),
                    ACL_MEM_SHARE_HANDLE_TYPE_FABRIC,
                    0,
                    &mut imported
                )
            )
        }?;
        Ok(Self { device: device.clone(), handle: Some(Handle(imported)), size, pages: Pages::Huge })
    }

    /// Imports a peer's 64-bit handle. Peer access must be up.
    pub fn import_shareable(
        device: &Device,
        handle: ShareableHandle,
        size: usize,
    ) -> Result<Self, DeviceError> {
        check_size(size)?;
        acl_present!(device.vendor(), aclrtFreePhysical)?;
        let mut imported: aclrtDrvMemHandle = std::ptr::null_mut();
        // SAFETY: numbers that the vendor checks, and a valid place.
        unsafe {
            acl_optional!(
                device.vendor(),
                aclrtMemImportFromShareableHandle(handle.0, device.logical().raw(), &mut imported)
            )
        }?;
        Ok(Self { device: device.clone(), handle: Some(Handle(imported)), size, pages: Pages::Normal })
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Makes a Fabric handle. Unless it is for any host, no process may import it before
    /// [`PhysicalMemory::allow_fabric`].
    pub fn export_fabric(&self, importers: &Importers) -> Result<FabricHandle, DeviceError> {
        let flags = match importers {
            Importers::Allowed => ACL_RT_VMM_EXPORT_FLAG_DEFAULT,
            Importers::AnyHost => ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION,
        };
        let mut shareable = aclrtMemFabricHandle { data: [0; 128] };
        // SAFETY: the memory is alive; `shareable` is a struct of the type that the share type asks for.
        unsafe {
            acl_optional!(
                self.device.vendor(),
                aclrtMemExportToShareableHandleV2(
                    self.raw(),
                    flags,
                    ACL_MEM_SHARE_HANDLE_TYPE_FABRIC,
                    (&raw mut shareable).cast()
                )
            )
        }?;
        Ok(FabricHandle(shareable.data))
    }

    /// Makes a 64-bit handle. No process may import it before [`PhysicalMemory::allow_shareable`].
    pub fn export_shareable(&self) -> Result<ShareableHandle, DeviceError> {
        let mut shareable = 0;
        // SAFETY: the memory is alive; `shareable` is a valid place for one number.
        unsafe {
            acl_optional!(
                self.device.vendor(),
                aclrtMemExportToShareableHandle(
                    self.raw(),
                    ACL_MEM_HANDLE_TYPE_NONE,
                    ACL_RT_VMM_EXPORT_FLAG_DEFAULT,
                    &mut shareable
                )
            )
        }?;
        Ok(ShareableHandle(shareable))
    }

    /// Allows these processes to import a Fabric handle of this memory.
    pub fn allow_fabric(&self, handle: &FabricHandle, pids: &[VendorPid]) -> Result<(), DeviceError> {
        let mut shareable = aclrtMemFabricHandle { data: handle.0 };
        let mut pids: Vec<i32> = pids.iter().map(|p| p.0).collect();
        // SAFETY: `shareable` is a struct of the type that the share type asks for; `pids` is valid for its
        // length.
        unsafe {
            acl_optional!(
                self.device.vendor(),
                aclrtMemSetPidToShareableHandleV2(
                    (&raw mut shareable).cast(),
                    ACL_MEM_SHARE_HANDLE_TYPE_FABRIC,
                    pids.as_mut_ptr(),
                    pids.len()
                )
            )
        }
    }

    /// Allows these processes to import a 64-bit handle of this memory.
    pub fn allow_shareable(&self, handle: ShareableHandle, pids: &[VendorPid]) -> Result<(), DeviceError> {
        let mut pids: Vec<i32> = pids.iter().map(|p| p.0).collect();
        // SAFETY: `pids` is valid for its length.
        unsafe {
            acl_optional!(
                self.device.vendor(),
                aclrtMemSetPidToShareableHandle(handle.0, pids.as_mut_ptr(), pids.len())
            )
        }
    }

    /// Frees it.
    pub fn release(mut self) -> Result<(), DeviceError> {
        self.release_once()
    }

    fn raw(&self) -> aclrtDrvMemHandle {
        self.handle.map_or(std::ptr::null_mut(), |h| h.0)
    }

    fn release_once(&mut self) -> Result<(), DeviceError> {
        match self.handle.take() {
            Some(handle) if !self.device.is_abandoned() => {
                // SAFETY: given by an allocation or an import, and taken out so that it is freed once.
                unsafe { acl_optional!(self.device.vendor(), aclrtFreePhysical(handle.0)) }
            }
            _ => Ok(()),
        }
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        let released = self.release_once();
        self.device.keep_first_error(released);
    }
}

/// A reserved range of addresses.
#[derive(Debug)]
struct Reservation {
    device: Device,
    pointer: Option<Handle>,
}

impl Reservation {
    fn new(device: &Device, size: usize, pages: Pages) -> Result<Self, DeviceError> {
        acl_present!(device.vendor(), aclrtReleaseMemAddress)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is a valid place; alignment 0 and no expected address leave the choice to the
        // vendor.
        unsafe {
            acl_optional!(
                device.vendor(),
                aclrtReserveMemAddress(&mut pointer, size, 0, std::ptr::null_mut(), pages.reserve_flag())
            )
        }?;
        Ok(Self { device: device.clone(), pointer: Some(Handle(pointer)) })
    }

    fn release_once(&mut self) -> Result<(), DeviceError> {
        match self.pointer.take() {
            Some(pointer) if !self.device.is_abandoned() => {
                // SAFETY: given by aclrtReserveMemAddress, taken out so that it is released once, and
                // unmapped before.
                unsafe { acl_optional!(self.device.vendor(), aclrtReleaseMemAddress(pointer.0)) }
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let released = self.release_once();
        self.device.keep_first_error(released);
    }
}

/// Physical memory at an address where this process's device can use it.
///
/// Released in order: unmapped, its addresses released, its memory freed (HC-5).
#[derive(Debug)]
pub struct Mapping {
    // In order of release.
    mapped: Option<Handle>,
    reservation: Reservation,
    memory: PhysicalMemory,
}

impl Mapping {
    /// Maps physical memory, and allows this process's device to read and write it.
    pub fn new(memory: PhysicalMemory) -> Result<Self, DeviceError> {
        let device = memory.device.clone();
        acl_present!(device.vendor(), aclrtUnmapMem)?;
        let reservation = Reservation::new(&device, memory.size, memory.pages)?;
        let mut mapping = Self { mapped: None, reservation, memory };
        let (pointer, size) = (as_ptr(mapping.addr()), mapping.size());
        // SAFETY: the range was reserved with this size, the memory has this size, and both are alive.
        unsafe { acl_optional!(device.vendor(), aclrtMapMem(pointer, size, 0, mapping.memory.raw(), 0)) }?;
        mapping.mapped = Some(Handle(pointer));
        let mut access = aclrtMemAccessDesc {
            flags: ACL_RT_MEM_ACCESS_FLAGS_READWRITE,
            // The *driver-visible* id belongs here, unlike in aclrtPhysicalMemProp.
            location: aclrtMemLocation { id: device.visible().0, r#type: ACL_MEM_LOCATION_TYPE_DEVICE },
            rsv: [0; 12],
        };
        // SAFETY: the range was just mapped with this size; one description is passed.
        unsafe { acl_optional!(device.vendor(), aclrtMemSetAccess(pointer, size, &mut access, 1)) }?;
        Ok(mapping)
    }

    /// Where it starts.
    pub fn addr(&self) -> DeviceAddr {
        DeviceAddr(self.reservation.pointer.map_or(0, |p| p.0 as u64))
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.memory.size
    }

    /// The memory behind it.
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// Releases all three parts and returns the first error. A failed step does not stop the later ones.
    pub fn release(mut self) -> Result<(), DeviceError> {
        let unmapped = self.unmap_once();
        let released = self.reservation.release_once();
        let freed = self.memory.release_once();
        unmapped.and(released).and(freed)
    }

    fn unmap_once(&mut self) -> Result<(), DeviceError> {
        match self.mapped.take() {
            Some(pointer) if !self.memory.device.is_abandoned() => {
                // SAFETY: mapped by aclrtMapMem, and taken out so that it is unmapped once.
                unsafe { acl_optional!(self.memory.device.vendor(), aclrtUnmapMem(pointer.0)) }
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Mapping {
    // The other fields release themselves in order.
    fn drop(&mut self) {
        let unmapped = self.unmap_once();
        self.memory.device.keep_first_error(unmapped);
    }
}
