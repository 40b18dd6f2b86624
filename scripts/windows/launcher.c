/* py.exe, and venvlauncher.exe: run the python.exe of the installation or virtual environment that
   this program lies in, with its own arguments. */
#include <windows.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>

#define PATH_CHARS 4096

static void cut_last_part(wchar_t *path) {
    wchar_t *end = wcsrchr(path, L'\\');
    if (end) *end = 0;
}

/* Replace a folder by the one that the virtual environment around it was made from, if any. */
static int find_installation(wchar_t *folder) {
    wchar_t file[PATH_CHARS];
    char line[PATH_CHARS];
    swprintf(file, PATH_CHARS, L"%ls\\..\\pyvenv.cfg", folder);
    FILE *config = _wfopen(file, L"r");
    if (!config) return 0;
    while (fgets(line, sizeof line, config)) {
        if (strncmp(line, "home = ", 7)) continue;
        line[strcspn(line, "\r\n")] = 0;
        MultiByteToWideChar(CP_UTF8, 0, line + 7, -1, folder, PATH_CHARS);
    }
    fclose(config);
    return 1;
}

int wmain(void) {
    wchar_t self[PATH_CHARS], folder[PATH_CHARS], program[PATH_CHARS];
    GetModuleFileNameW(NULL, self, PATH_CHARS);
    wcscpy(folder, self);
    cut_last_part(folder);
    if (find_installation(folder)) SetEnvironmentVariableW(L"__PYVENV_LAUNCHER__", self);
    swprintf(program, PATH_CHARS, L"%ls\\python.exe", folder);

    HANDLE job = CreateJobObjectW(NULL, NULL);
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {0};
    limits.BasicLimitInformation.LimitFlags =
        JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK;
    SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);

    STARTUPINFOW startup = {.cb = sizeof startup};
    PROCESS_INFORMATION process;
    GetStartupInfoW(&startup);
    if (!CreateProcessW(program, GetCommandLineW(), NULL, NULL, TRUE, CREATE_SUSPENDED, NULL, NULL,
                        &startup, &process))
        return 101;
    AssignProcessToJobObject(job, process.hProcess);
    ResumeThread(process.hThread);
    WaitForSingleObject(process.hProcess, INFINITE);
    DWORD code;
    GetExitCodeProcess(process.hProcess, &code);
    return (int)code;
}
