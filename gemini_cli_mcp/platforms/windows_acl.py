"""Access to folders on Windows."""

# The stubs of pywin32 have wrong types, and most of its results have none.
# pyright: basic, reportArgumentType=false, reportMissingModuleSource=false

import sys
from contextlib import suppress
from pathlib import Path

assert sys.platform == "win32"  # tells the type checker

import ntsecuritycon
import pywintypes
import win32api
import win32security


def allow_only_user(folder: Path) -> None:
    """Take a folder and what will be in it away from other users, where the disk can do that."""
    with suppress(pywintypes.error):
        process = win32api.GetCurrentProcess()
        token = win32security.OpenProcessToken(process, win32security.TOKEN_QUERY)
        user = win32security.GetTokenInformation(token, win32security.TokenUser)[0]
        access = win32security.ACL()
        access.AddAccessAllowedAceEx(
            win32security.ACL_REVISION_DS,
            win32security.CONTAINER_INHERIT_ACE | win32security.OBJECT_INHERIT_ACE,
            ntsecuritycon.FILE_ALL_ACCESS,
            user,
        )
        security = win32security.SECURITY_DESCRIPTOR()
        security.SetSecurityDescriptorDacl(True, access, False)
        protected = win32security.SE_DACL_PROTECTED  # from what it would inherit
        security.SetSecurityDescriptorControl(protected, protected)
        parts = (
            win32security.DACL_SECURITY_INFORMATION
            | win32security.PROTECTED_DACL_SECURITY_INFORMATION
        )
        win32security.SetFileSecurity(str(folder), parts, security)
