import com.alibaba.otter.canal.instance.core.CanalInstance;
import com.alibaba.otter.canal.parse.inbound.mysql.tsdb.MemoryTableMeta;
import com.alibaba.otter.canal.parse.inbound.mysql.tsdb.TableMetaTSDB;
import com.alibaba.otter.canal.parse.inbound.mysql.tsdb.TableMetaTSDBFactory;
import com.alibaba.otter.canal.protocol.position.EntryPosition;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import com.alibaba.otter.canal.server.netty.CanalServerWithNetty;
import org.springframework.context.support.FileSystemXmlApplicationContext;

/** A Canal server with one destination, wired by the Spring file that the first argument names. */
public class CanalForTests {
    public static void main(String[] arguments) throws Exception {
        CanalServerWithEmbedded embedded = CanalServerWithEmbedded.instance();
        embedded.setCanalInstanceGenerator(destination ->
            new FileSystemXmlApplicationContext("file:" + arguments[0]).getBean("instance", CanalInstance.class));
        embedded.setUser(System.getProperty("canal.user"));
        embedded.setPasswd(System.getProperty("canal.password.hash"));
        embedded.setMetricsPort(0);
        embedded.start();
        embedded.start(System.getProperty("canal.destination"));
        CanalServerWithNetty server = CanalServerWithNetty.instance();
        server.setEmbeddedServer(embedded);
        server.setIp("127.0.0.1");
        server.setPort(Integer.getInteger("canal.port"));
        server.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            server.stop();
            embedded.stop();
        }));
        System.out.println("canal is running");
        Thread.currentThread().join();
    }

    /** Canal's TSDB in memory: a table has the columns that it had in the binlog. A restart forgets them. */
    public static class Tables implements TableMetaTSDBFactory {
        public TableMetaTSDB build(String destination, String springXml) {
            return new MemoryTableMeta() {
                @Override
                public boolean rollback(EntryPosition position) {
                    return true; // at the start there is nothing to take back
                }
            };
        }

        public void destory(String destination) {}
    }
}
