"""Lines as the drivers, launchers and schedulers write them, made up for the tests of the event readers."""

DMESG = """\
[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 1850.000001] NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.
[171167.620236] NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x0 0x0 0x0 0x0 0x0)
[171167.620237] NVRM: Xid (PCI:0009:01:00): 145, pid=11436, name=cache_mgr_main, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008)
[171167.621162] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
[171168.000000] NVRM: Xid (0000:03:00): 14, Channel 00000001
[171169.000000] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up
[171169.000001] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00
[171170.000000] pcieport 0000:80:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0
[171170.000001] nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
[171171.000000] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090
[171172.000000] Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB
[171173.000000] NVRM: Xid error: xyz, invalid data
[171174.000000] usb 1-1: new high-speed USB device number 2
"""
JOURNAL = (
    '{"__REALTIME_TIMESTAMP":"1737434504283302","_HOSTNAME":"gpu017","SYSLOG_IDENTIFIER":"kernel",'
    '"MESSAGE":"NVRM: Xid (PCI:0000:38:00): 79, pid=\'<unknown>\', name=<unknown>, GPU has '
    'fallen off the bus."}\n'
    '{"__REALTIME_TIMESTAMP":"1737434505000000","_HOSTNAME":"gpu017","MESSAGE":[79,111,112,115,255]}\n'
)
SHORT_ISO = (
    "2025-02-23T16:24:18+0100 gpu017 kernel: NVRM: Xid (PCI:0000:9b:00): 48, pid=7, "
    "name=python, DBE\n"
    "Feb 23 16:24:19 gpu018 kernel: [12345.678901] NVRM: Xid (PCI:0000:9b:00): 63, Row "
    "Remapper: New row\n"
)
NCCL = """\
gpu017:101:201 [4] NCCL INFO comm 0x5 rank 12 nranks 16 cudaDev 4 nvmlDev 4 busId 9b000 commId 0x5a - Init COMPLETE
gpu017:101:201 [4] NCCL INFO comm 0x6 rank 1 nranks 2 cudaDev 4 nvmlDev 4 busId 9b000 commId 0x5b - Init COMPLETE
[2026-10-06 07:08:09] gpu017:101:305 [4] transport/net_ib.cc:1234 NCCL WARN NET/IB : Got completion with error 12
gpu018:77:78 [0] misc/socket.cc:484 NCCL WARN socketProgress: Connection closed by remote peer
gpu018:77:78 [0] NCCL INFO Channel 00/02 :  0   1[rank3]:[E1003 18:37:01.832146912 ProcessGroupNCCL.cpp:607] [Rank 3] \
Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6463, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, \
Timeout(ms)=1800000) ran for 1800017 milliseconds before timing out.
 2   3   4
[rank3]:[E1003 18:37:01.833621509 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank 3] Timeout at NCCL work: 6463, \
last enqueued NCCL work: 6463, last completed NCCL work: 4611686018427387904.
"""
TORCHRUN = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-10-06_07:08:10
  host      : gpu018
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 102932)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-10-06_07:08:09
  host      : gpu017
  rank      : 4 (local_rank: 4)
  exitcode  : -9 (pid: 102930)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 102930
============================================================
"""
SLURM = """\
 31%|███       | 31/100 [00:37<1:02:28]slurmstepd: error: *** JOB 7 ON gpu017 CANCELLED AT 2026-10-06T07:08:09 DUE TO TIME LIMIT ***
slurmstepd: error: *** STEP 7.0 ON gpu018 CANCELLED AT 2026-10-06T07:08:09 DUE TO PREEMPTION ***
slurmstepd: error: *** JOB 7 ON gpu017 CANCELLED AT 2026-10-06T07:08:09 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.
srun: error: gpu017: task 3: Out Of Memory
srun: error: gpu018: tasks 8-15: Exited with exit code 1
srun: error: Node failure on gpu019
"""
