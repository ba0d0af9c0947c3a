"""The rules: what workflow code must not call, why, and what to do instead.

A pattern is a dotted path of ``resolver``, with ``()`` for a call: ``httpx.Client().get`` is a method of a client.
``*`` matches one name, ``**`` any number of names, ``{a,b}`` either one; a space separates patterns.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class ViolationKind(NamedTuple):
    """A kind of violation: why it is one, and what to do instead."""

    reason: str
    remedy: str


VIOLATION_KINDS: dict[str, ViolationKind] = {
    "clock": ViolationKind(
        "the clock shows another time at every replay", "use `holdfast.now()`, or read the clock in a step"
    ),
    "random": ViolationKind(
        "every replay draws another value", "use `holdfast.random()` or `holdfast.uuid4()`, or draw in a step"
    ),
    "io": ViolationKind("it is done again at every replay, and nothing of it is recorded", "do it in a step"),
    "environment": ViolationKind("another process may see something else", "read it in a step"),
    "blocking": ViolationKind("workflow code must not block, nor leave its event loop", "do it in a step"),
    "await": ViolationKind("it is not awaited, so it never runs", "`await` it, or hand it to `asyncio.gather`"),
    "set": ViolationKind("the order of a set differs from process to process", "sort it first"),
    "hash": ViolationKind("the hash of a string differs in every process", "order by the value itself"),
    "address": ViolationKind(
        "an object's address differs in every process", "order by something that is in the object"
    ),
    "state": ViolationKind(
        "workflow code may depend only on its inputs and on what its steps return",
        "keep it in a local variable, or do it in a step",
    ),
    "catch-all": ViolationKind(
        "a run that leaves memory is stopped by a `BaseException`, which must pass",
        "catch `Exception`, or let what is no `Exception` pass with `raise`",
    ),
}


class Rule(NamedTuple):
    """Calls that are a violation."""

    kind: str
    patterns: str
    remedy: str = ""
    """Replaces that of the kind."""
    max_arguments: int | None = None
    """The rule applies only up to this number of arguments: ``time.gmtime()`` reads the clock, ``time.gmtime(0)`` does
    not."""


_UUID_REMEDY = "use `holdfast.uuid4()`"
_THREAD_REMEDY = "declare the plain function as a step: it runs in a thread"
_HTTP_METHODS = "{get,post,put,patch,delete,head,options,request,stream,send}"
_MODEL_METHODS = (
    "{create,parse,stream,generate,list,retrieve,delete,update,cancel,upload,submit,content,count_tokens,"
    "generate_content,generate_content_stream,send_message,embed,embed_content,complete,chat,edit,moderate}"
)
_PATH_EXPRESSIONS = (
    "pathlib.{Path,PosixPath}{(),.cwd(),.home()}"
    "{,.parent,.resolve(),.absolute(),.joinpath(),.with_suffix(),.with_name(),.with_stem(),.expanduser()}"
)

RULES: tuple[Rule, ...] = (
    # The clock
    Rule("clock", "time.{time,monotonic,perf_counter,process_time,thread_time}{,_ns} time.clock_gettime{,_ns}"),
    Rule("clock", "time.{localtime,gmtime,ctime,asctime}", max_arguments=0),
    Rule("clock", "time.strftime", max_arguments=1),
    Rule("clock", "datetime.datetime.{now,utcnow,today} datetime.date.today"),
    Rule("clock", "pandas.Timestamp.{now,utcnow,today} pendulum.{now,today,tomorrow,yesterday}"),
    Rule("clock", "arrow.{now,utcnow} django.utils.timezone.{now,localtime,localdate}"),
    # Randomness
    Rule("random", "uuid.{uuid1,uuid4,uuid6,uuid7}", _UUID_REMEDY),
    Rule("random", "random.Random numpy.random.{default_rng,RandomState,SeedSequence,PCG64}", max_arguments=0),
    Rule(
        "random",
        "random.{random,uniform,triangular,randint,randrange,randbytes,getrandbits,choice,choices,sample,shuffle,seed,"
        "gauss,normalvariate,lognormvariate,expovariate,betavariate,gammavariate,vonmisesvariate,paretovariate,"
        "weibullvariate,binomialvariate,SystemRandom}",
        "use `holdfast.random()`, or draw in a step",
    ),
    Rule("random", "secrets.{choice,randbelow,randbits,token_bytes,token_hex,token_urlsafe,SystemRandom}"),
    Rule("random", "os.{urandom,getrandom}"),
    Rule(
        "random",
        "numpy.random.{rand,randn,randint,random,random_sample,ranf,sample,bytes,choice,shuffle,permutation,seed,"
        "random_integers,normal,uniform,standard_normal,poisson,binomial,exponential,beta,gamma,geometric,lognormal}",
    ),
    # Files
    Rule("io", "builtins.{open,input} io.open codecs.open"),
    Rule(
        "io",
        f"{_PATH_EXPRESSIONS}.{{read_text,read_bytes,write_text,write_bytes,open,exists,is_file,is_dir,is_symlink,stat,lstat,"
        "iterdir,glob,rglob,walk,mkdir,rmdir,unlink,rename,replace,touch,chmod,symlink_to,hardlink_to,samefile,"
        "readlink,owner}",
    ),
    Rule(
        "io",
        "os.{open,read,write,close,remove,unlink,rename,renames,replace,mkdir,makedirs,rmdir,removedirs,listdir,"
        "scandir,walk,stat,lstat,chmod,chown,link,symlink,readlink,truncate,access,chdir,mkfifo,utime,fsync}",
    ),
    Rule("io", "os.path.{exists,lexists,isfile,isdir,islink,getsize,getmtime,getctime,getatime,samefile}"),
    Rule("io", "glob.{glob,iglob} tempfile.{mkstemp,mkdtemp,TemporaryFile,NamedTemporaryFile,TemporaryDirectory}"),
    Rule(
        "io",
        "shutil.{copy,copy2,copyfile,copytree,copymode,copystat,copyfileobj,rmtree,move,make_archive,"
        "unpack_archive,disk_usage,chown}",
    ),
    Rule("io", "fileinput.input sys.stdin.{read,readline,readlines}"),
    # Processes and sockets
    Rule("io", "subprocess.{run,Popen,call,check_call,check_output,getoutput,getstatusoutput}"),
    Rule("io", "os.{system,popen,fork,kill,execv,execve,execvp,spawnl,spawnv,posix_spawn,startfile}"),
    Rule("io", "socket.{socket,create_connection,create_server,getaddrinfo,gethostbyname,gethostbyaddr}"),
    Rule("io", "smtplib.{SMTP,SMTP_SSL} ftplib.{FTP,FTP_TLS} imaplib.{IMAP4,IMAP4_SSL} webbrowser.open"),
    # HTTP
    Rule("io", f"requests.{_HTTP_METHODS} requests.{{Session,session}}().{_HTTP_METHODS} httpx.{_HTTP_METHODS}"),
    Rule("io", f"httpx.{{Client,AsyncClient}}().{_HTTP_METHODS} aiohttp.request"),
    Rule("io", f"aiohttp.ClientSession().{{ws_connect,{_HTTP_METHODS[1:-1]}}}"),
    Rule("io", "urllib.request.{urlopen,urlretrieve} urllib3.request urllib3.PoolManager().{request,urlopen}"),
    Rule("io", "http.client.{HTTPConnection,HTTPSConnection}().{request,getresponse,connect}"),
    Rule("io", "websockets.connect websockets.{client,sync.client,asyncio.client}.connect"),
    # Models
    Rule("io", f"openai.{{Async,}}{{Azure,}}OpenAI(){{,.with_options()}}.**.{_MODEL_METHODS}"),
    Rule("io", f"openai.{{chat.completions,completions,responses,embeddings,images,models}}.{_MODEL_METHODS}"),
    Rule("io", "openai.{ChatCompletion,Completion,Embedding}.{create,acreate}"),
    Rule("io", f"anthropic.{{Async,}}Anthropic{{,Bedrock,Vertex}}(){{,.with_options()}}.**.{_MODEL_METHODS}"),
    Rule("io", f"groq.{{Async,}}Groq().**.{_MODEL_METHODS} google.genai.Client().**.{_MODEL_METHODS}"),
    Rule("io", "mistralai.Mistral().**.{create,complete,complete_async,stream,stream_async}"),
    Rule("io", "google.generativeai.GenerativeModel().{generate_content,generate_content_async}"),
    Rule("io", "litellm.{completion,acompletion,embedding,aembedding,responses,aresponses}"),
    Rule("io", "ollama.{chat,generate,embed,embeddings,pull} ollama.{Client,AsyncClient}().{chat,generate,embed}"),
    # Databases and services
    Rule("io", "{sqlite3,aiosqlite,psycopg,psycopg2,asyncpg,pymysql,aiomysql,MySQLdb,duckdb,oracledb,pyodbc}.connect"),
    Rule(
        "io",
        "{sqlite3,aiosqlite,psycopg,psycopg2,asyncpg,pymysql,aiomysql,MySQLdb,duckdb}.connect()."
        "{execute,executemany,executescript,commit,rollback,cursor,fetch,fetchrow,fetchval,transaction}",
    ),
    Rule("io", "psycopg.{Connection,AsyncConnection}.connect mysql.connector.connect asyncpg.create_pool"),
    Rule("io", "asyncpg.create_pool().{acquire,execute,fetch,fetchrow,fetchval}"),
    Rule("io", "psycopg_pool.{ConnectionPool,AsyncConnectionPool}().{connection,getconn,open}"),
    Rule(
        "io", "sqlalchemy.create_engine().{connect,begin} sqlalchemy.ext.asyncio.create_async_engine().{connect,begin}"
    ),
    Rule("io", "redis.{,asyncio.}{Redis,StrictRedis}().* redis.{,asyncio.}{from_url,Redis.from_url}().*"),
    Rule("io", "pymongo.MongoClient().{list_database_names,server_info,start_session,admin.command}"),
    Rule("io", "boto3.{client,resource} boto3.client().*"),
    # Environment
    Rule(
        "environment",
        "os.{getenv,getenvb,putenv,unsetenv,getcwd,getcwdb,getpid,getppid,getlogin,getuid,getgid,uname,"
        "cpu_count,process_cpu_count,getloadavg,get_terminal_size}",
    ),
    Rule("environment", "pathlib.Path.{cwd,home} shutil.{which,get_terminal_size} getpass.{getuser,getpass}"),
    Rule("environment", "socket.{gethostname,getfqdn} platform.{node,uname,platform} uuid.getnode"),
    Rule(
        "environment", "threading.{get_ident,get_native_id,current_thread} multiprocessing.{cpu_count,current_process}"
    ),
    # Blocking, and leaving the loop
    Rule("blocking", "time.sleep", "use `await asyncio.sleep(...)`, which is a durable timer here"),
    Rule(
        "blocking", "asyncio.to_thread anyio.to_thread.run_sync starlette.concurrency.run_in_threadpool", _THREAD_REMEDY
    ),
    Rule(
        "blocking", "threading.{Thread,Timer} multiprocessing.{Process,Pool} _thread.start_new_thread", _THREAD_REMEDY
    ),
    Rule("blocking", "concurrent.futures.{,thread.,process.}{ThreadPoolExecutor,ProcessPoolExecutor}", _THREAD_REMEDY),
    Rule("blocking", "asyncio.{create_subprocess_exec,create_subprocess_shell} anyio.{run_process,open_process}"),
    Rule("blocking", "asyncio.{open_connection,start_server,open_unix_connection,start_unix_server}"),
    Rule("blocking", "anyio.{open_file,connect_tcp,connect_unix,create_tcp_listener}"),
    Rule(
        "blocking",
        "asyncio.{run,run_coroutine_threadsafe} asyncio.{get_event_loop,get_running_loop}().run_until_complete "
        "anyio.run anyio.from_thread.{run,run_sync}",
        "`await` it here, or do it in a step",
    ),
)

METHOD_RULES: dict[str, Rule] = {
    # A method of this name breaks the rule, whatever its object is.
    "run_in_executor": Rule("blocking", "", _THREAD_REMEDY),
}

ATTRIBUTE_KINDS: dict[str, str] = {
    "os.environ": "environment",
    "os.environb": "environment",
    "sys.argv": "environment",
}
"""Attributes that workflow code must not even read."""


def _compile_patterns(patterns: str) -> re.Pattern[str]:
    text = re.escape(patterns)
    text = text.replace(r"\{", "(?:").replace(r"\}", ")").replace(",", "|")
    text = text.replace(r"\*\*\.", r"(?:\w+\.)*").replace(r"\*", r"\w+")
    return re.compile("|".join(f"(?:{pattern})" for pattern in text.split(r"\ ")))


_COMPILED_RULES = tuple((_compile_patterns(rule.patterns), rule) for rule in RULES)


def find_rule(dotted: str, argument_count: int) -> Rule | None:
    """The rule that a call of ``dotted`` with this number of arguments breaks."""
    for pattern, rule in _COMPILED_RULES:
        if pattern.fullmatch(dotted) and (rule.max_arguments is None or argument_count <= rule.max_arguments):
            return rule
    return None
