import com.github.shyiko.mysql.binlog.BinaryLogClient;
import com.github.shyiko.mysql.binlog.event.EventData;
import com.github.shyiko.mysql.binlog.event.WriteRowsEventData;
import com.github.shyiko.mysql.binlog.network.SSLMode;
import java.io.Serializable;

/** The Java connector reads inserted rows from a position of the binlog. Arguments: port, file, offset, rows. */
public class ConnectorPeer {
    private static long rows, ids;

    public static void main(String[] arguments) throws Exception {
        BinaryLogClient client =
            new BinaryLogClient("127.0.0.1", Integer.parseInt(arguments[0]), "cdc", System.getenv("PEER_PASSWORD"));
        client.setSSLMode(SSLMode.REQUIRED);
        client.setServerId(4_000_002);
        client.setBinlogFilename(arguments[1]);
        client.setBinlogPosition(Long.parseLong(arguments[2]));
        long expected = Long.parseLong(arguments[3]);
        client.registerEventListener(event -> {
            EventData data = event.getData();
            if (!(data instanceof WriteRowsEventData)) {
                return;
            }
            if (rows == 0) {
                System.out.println("first");
            }
            for (Serializable[] row : ((WriteRowsEventData) data).getRows()) {
                ids += ((Number) row[0]).longValue();
                rows++;
            }
            if (rows >= expected) {
                Ends.report(rows, ids);
            }
        });
        client.connect();
    }
}
