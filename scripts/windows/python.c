/* python.exe: what the official one does, too. */
#include <windows.h>

int wmain(int argc, wchar_t **argv) {
    HMODULE python = LoadLibraryW(L"python311.dll");
    int (*py_main)(int, wchar_t **) = python ? (void *)GetProcAddress(python, "Py_Main") : NULL;
    return py_main ? py_main(argc, argv) : 99;
}
